"""`python -m draftproof`, and the console script: no interrupt leaves a traceback."""

import sys


def main() -> None:
    """`draftproof.cli.main`, which takes a moment to load."""
    try:
        from draftproof import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
