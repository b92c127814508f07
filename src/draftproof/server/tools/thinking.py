"""What a model thinks in tags before it answers, apart from the answer.

However the text is cut, the parts are the same. White space around the tags is dropped. Knows no
model.
"""

from __future__ import annotations

from draftproof.server.tools.forms import THINK
from draftproof.server.tools.parser import Part, begun, joined

BEGIN, END = THINK


class Thinking:
    """inside: the prompt has opened the tag."""

    def __init__(self, inside: bool) -> None:
        self._state = "thinks" if inside else "begins"
        self._text = ""  # not told yet
        self._said = False  # something of what is told now, which white space may stand behind

    def feed(self, text: str, last: bool = False) -> list[Part]:
        """What is certain now, of kind reasoning or content; last: nothing comes behind it."""
        self._text += text
        parts: list[Part] = []
        if self._state == "begins":
            self._begin(last)
        if self._state == "thinks":
            parts.append(self._think(last))
        if self._state == "thought":
            self._text = self._text.lstrip()
            if self._text:
                self._state = "answers"
        if self._state == "answers":
            parts.append(Part("content", self._text))
            self._text = ""
        return joined(parts)

    def _begin(self, last: bool) -> None:
        shown = self._text.lstrip()
        if shown.startswith(BEGIN):
            self._state, self._text = "thinks", shown[len(BEGIN) :]
        elif last or not BEGIN.startswith(shown):
            self._state = "answers"

    def _think(self, last: bool) -> Part:
        if not self._said:
            self._text = self._text.lstrip()
        at = self._text.find(END)
        if at >= 0:
            told, self._state = self._text[:at].rstrip(), "thought"
            self._text = self._text[at + len(END) :]
            return Part("reasoning", told)
        sure = self._text[: len(self._text) - (0 if last else begun(self._text, END))]
        told = sure.rstrip()
        self._text = self._text[len(told) :]
        self._said = self._said or bool(told)
        return Part("reasoning", told)
