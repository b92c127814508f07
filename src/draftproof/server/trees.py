"""Steps of a text for a client that looks on: each one's tree, and what became of its nodes."""

from __future__ import annotations

from typing import Any

from draftproof.counts import Watched
from draftproof.request import Request
from draftproof.server.pieces import Pieces


class Trees:
    """Of one text, which is watched. drafter: who drafts, where nothing chooses among several."""

    def __init__(self, request: Request, pieces: Pieces, drafter: str) -> None:
        self.request, self.pieces, self.drafter = request, pieces, drafter
        self._step, self._at = 0, 0  # the step that the next token is of, and its place there

    def next(self) -> dict[str, Any]:
        """Of the next token: who drafted it, how deep; of the first one of a step that step too."""
        steps = self.request.watched or []
        if self._step >= len(steps):  # an interrupt came between the token and its step
            return {"token": {"source": "target", "depth": 0}}
        step, at = steps[self._step], self._at
        source = step.writer(at, self.drafter)
        told: dict[str, Any] = {
            "token": {"source": source or "target", "depth": at + 1 if source else 0}
        }
        if not at:
            told["step"] = self._of(step)
        self._at += 1
        if self._at >= step.written:
            self._step, self._at = self._step + 1, 0
        return told

    def all(self) -> list[dict[str, Any]]:
        """Every step."""
        return [self._of(step) for step in self.request.watched or []]

    def _of(self, step: Watched) -> dict[str, Any]:
        tree, right = step.tree, {*step.path}
        nodes = [
            {
                "text": self.pieces.of(tree.tokens[node])[0],
                "parent": tree.parents[node] - 1,  # -1: the text's last token
                "score": None if tree.scores is None else tree.scores[node],
                "source": step.source(node, self.drafter),
                "accepted": node in right,
            }
            for node in range(1, len(tree))
        ]
        return {"nodes": nodes, "written": step.written, "why": step.why}
