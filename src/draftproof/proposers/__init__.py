"""Drafting methods, one file each; none of them knows the engine, or another one."""
