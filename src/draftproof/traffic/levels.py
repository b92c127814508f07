"""Loads, one after the other: so many clients at once, or calls that come at their own times.

Clients (a closed loop) wait for an answer before they ask again, so a slow server gets less to do.
Arrivals (an open loop) do not: what is late is counted from when it was due. Each load asks the
same questions in the same order.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle, islice
from typing import Any

from draftproof.prompts import Prompt
from draftproof.traffic.answers import Answer, Question
from draftproof.traffic.client import Client

NOT_ASKED = "not asked"  # a turn behind one that failed


@dataclass(slots=True, eq=False)
class Level:
    """A load and its answers, in the order of their ends. seconds, processor_s: all of it took."""

    name: str
    clients: int | None = None
    rate: float | None = None  # calls a second
    due: Sequence[float] = ()  # of arrivals
    answers: list[Answer] = field(default_factory=list)
    began: float = 0.0
    seconds: float = 0.0
    processor_s: float = 0.0  # the client's own


@dataclass(frozen=True, slots=True)
class Asked:
    """How all questions are asked.

    calls: conversations of a load; prompts come again from the first one. deciding: what texts hang
    on. more: what is sent besides. warm: conversations that are not counted. cold: every load has a
    `cache_salt` of its own, so that it finds no prompt read.
    """

    model: str
    calls: int
    deciding: dict[str, Any]
    more: dict[str, Any]
    warm: int = 0
    cold: bool = False


class Sweep:
    """Every load once. tick: told what runs, and the share of all answers that has come."""

    def __init__(
        self,
        client: Client,
        prompts: Sequence[Prompt],
        asked: Asked,
        levels: Sequence[Level],
        tick: Callable[[str, float | None], None] = lambda text, share: None,
    ) -> None:
        self.client, self.asked, self.levels, self._tick = client, asked, levels, tick
        self._prompts = list(islice(cycle(prompts), asked.calls))
        self._salt = secrets.token_hex(8)  # of this run: the server may remember the one before
        self._total = len(levels) * sum(len(each.turns) for each in self._prompts)

    async def run(self) -> None:
        """Raises `ValueError` if a call fails that warms up: so would all others."""
        await self._warm()
        for level in self.levels:
            await self.client.connect(level.clients or 0)
            level.began, busy = self.client.now(), time.process_time()
            try:
                await (self._arrive(level) if level.clients is None else self._hold(level))
            finally:  # an interrupted load counts too
                level.seconds = self.client.now() - level.began
                level.processor_s = time.process_time() - busy

    async def _warm(self) -> None:
        level = Level("warm-up", clients=1)
        for prompt in islice(cycle(self._prompts), self.asked.warm):
            await self._converse(level, prompt)
            if failed := next((each for each in level.answers if each.error), None):
                raise ValueError(f"the first calls failed: {failed.error}")

    async def _hold(self, level: Level) -> None:
        assert level.clients is not None
        waiting = iter(self._prompts)

        async def client() -> None:
            for prompt in waiting:  # shared by all
                await self._converse(level, prompt)

        async with asyncio.TaskGroup() as group:
            for _ in range(level.clients):
                group.create_task(client())

    async def _arrive(self, level: Level) -> None:
        async with asyncio.TaskGroup() as group:
            for prompt, at in zip(self._prompts, level.due, strict=True):
                due = level.began + at
                await asyncio.sleep(max(0.0, due - self.client.now()))
                group.create_task(self._converse(level, prompt, due))

    async def _converse(self, level: Level, prompt: Prompt, due: float | None = None) -> None:
        """The turns of a prompt, each behind the answer to the one before."""
        said: list[str] = []
        salt = {"cache_salt": f"{self._salt} {level.name}"} if self.asked.cold else {}
        shared = self.asked.deciding | self.asked.more | {"model": self.asked.model} | salt
        failed = None
        for turn in range(len(prompt.turns)):
            question = _question(prompt, said)
            key = question.key(self.asked.deciding)
            if failed is None:
                answer = await self.client.ask(question, shared, key, due if not turn else None)
                failed = answer.fault
                said.append(answer.text)
            else:
                now = self.client.now()
                answer = Answer(Question(prompt.id, turn, "", {}), "", now, now, ended=now)
                answer.fault, answer.error = NOT_ASKED, "the turn before it failed"
            level.answers.append(answer)
            if level in self.levels:
                done = sum(len(each.answers) for each in self.levels)
                self._tick(level.name, done / self._total)
            else:
                self._tick(level.name, None)


def _question(prompt: Prompt, answers: Sequence[str]) -> Question:
    """What comes after these answers."""
    turn = len(answers)
    if not (prompt.chat or prompt.opening):
        text = "".join([*chain(*zip(prompt.turns, answers, strict=False)), prompt.turns[turn]])
        return Question(prompt.id, turn, "/v1/completions", {"prompt": text})
    messages = [*prompt.opening]
    for said, answer in zip(prompt.turns, answers, strict=False):
        messages += [("user", said), ("assistant", answer)]
    messages.append(("user", prompt.turns[turn]))
    named = [{"role": role, "content": text} for role, text in messages]
    return Question(prompt.id, turn, "/v1/chat/completions", {"messages": named})
