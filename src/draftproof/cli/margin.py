"""Text that is written while it comes, wrapped between words at a terminal's margin."""

from __future__ import annotations

import shutil
import sys

from rich.cells import cell_len


class Margin:
    """Writes to standard output. Wraps at a terminal, and nowhere else."""

    def __init__(self) -> None:
        self._wraps = sys.stdout.isatty()
        self._column, self._word = 0, ""
        self._shown = ""  # the word, with its colours

    def write(self, text: str, begin: str = "", end: str = "") -> None:
        """Text to come; a word that may still grow waits for its end.

        begin, end: a colour's, which take no room.
        """
        if not self._wraps:
            print(f"{begin}{text}{end}" if text else "", end="", flush=True)
            return
        width = shutil.get_terminal_size().columns
        for character in text:
            if character.isspace():
                self._end_word(width)
                self._space(character, width, begin, end)
            elif cell_len(character) > 1:  # scripts of wide characters break between any two
                self._end_word(width)
                self._word, self._shown = character, f"{begin}{character}{end}"
                self._end_word(width)
            else:
                self._word += character
                self._shown += f"{begin}{character}{end}"
                if len(self._word) >= width:  # longer than a line: the terminal breaks it
                    self._end_word(width)
        sys.stdout.flush()

    def end(self, *, line: bool) -> None:
        """No more is to come. line: end the line as well."""
        self._end_word(shutil.get_terminal_size().columns)
        print(end="\n" if line else "", flush=True)

    def _end_word(self, width: int) -> None:
        cells = cell_len(self._word)
        if self._column and self._column + cells > width:
            print()
            self._column = 0
        print(self._shown, end="")
        self._column += cells
        self._word = self._shown = ""

    def _space(self, character: str, width: int, begin: str, end: str) -> None:
        if character == "\n" or (self._column >= width and character in " \t"):
            print()
            self._column = 0
        else:
            print(f"{begin}{character}{end}", end="")
            self._column += 8 - self._column % 8 if character == "\t" else 1
