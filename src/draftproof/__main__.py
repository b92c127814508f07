"""`python -m draftproof`, and the console script: no interrupt leaves a traceback."""

import sys

from draftproof import interrupts


def main() -> None:
    """`draftproof.cli.main`, which takes a moment to load."""
    try:
        with interrupts.kept():
            from draftproof import cli
        cli.main()
    except KeyboardInterrupt:
        sys.exit(interrupts.INTERRUPTED)


if __name__ == "__main__":
    main()
