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
    finally:  # all is written; what Python discards at its end would tell of another interrupt
        _end_at_once()


def _end_at_once() -> None:
    """An interrupt from here on ends the process, without a word."""
    import signal

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
