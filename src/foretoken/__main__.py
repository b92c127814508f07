"""`python -m foretoken`, as `foretoken`."""

from foretoken.cli import main

main()
