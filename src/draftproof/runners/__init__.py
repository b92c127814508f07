"""One forward pass over token trees: the seam between the engine and whatever computes logits."""
