"""What drafting methods share."""
