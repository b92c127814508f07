"""Training of what drafts: data, recipes, a trainer that knows none of them, and what comes after.

Needs the extra `draftproof[train]`; nothing outside of it and of the command line imports it.
"""
