"""Training of what drafts: data, recipes, a trainer that knows none of them, and what comes after.

Needs the extra `foretoken[train]`; nothing outside of it and of the command line imports it.
"""
