"""`python -m draftproof`, as `draftproof`."""

from draftproof.cli import main

main()
