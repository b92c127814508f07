"""`python -m draftproof`, and the console script: no interrupt leaves a traceback."""

import sys


def main() -> None:
    """`draftproof.cli.main`, which takes a moment to load."""
    try:  # around every import: before it an interrupt is Python's to tell
        import draftproof.interrupts as interrupts

        with interrupts.kept():
            from draftproof import cli
        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)  # `interrupts.INTERRUPTED`, which may not be there yet


if __name__ == "__main__":
    main()
