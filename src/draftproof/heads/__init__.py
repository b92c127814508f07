"""Heads over a hidden state of the target: the module, its files, its place on a target."""
