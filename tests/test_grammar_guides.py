"""A text's place in its grammar: exact wherever it is asked, and paid by what is new alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any, overload

import pytest

import draftproof as dp
from draftproof.grammars.guide import Guide
from draftproof.sampling import History

GRAMMAR = dp.Grammar.regex(r"([ab]{1,3}|c[abc])(,([ab]{1,3}|c[abc])){0,400}")


@cache
def llm() -> dp.LLM:
    return dp.LLM("bundled", speculate=None)


def ids(text: str) -> list[int]:
    return [llm().tokenizer(each, add_special_tokens=False)["input_ids"][-1] for each in text]


def guide() -> Guide:
    return Guide(llm().intake.grammars.compile(GRAMMAR), (), ())


class Counting(Sequence[int]):
    """A text that counts how often a token of it is looked at."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.seen = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        self.seen += len(self.tokens[at]) if isinstance(at, slice) else 1
        return self.tokens[at]


def test_a_long_text_is_looked_at_once() -> None:
    """However often it is asked about, with paths that are taken and paths that are not."""
    followed, output, letters = guide(), Counting(), ids("ab,")
    a, b, comma = letters
    for at in range(600):
        new = comma if at % 4 == 3 else letters[at % 2]
        assert followed.allows(output, (), new)
        assert followed.valid(output, [new, comma, comma]) == 1 + (new != comma)
        assert followed.allows(output, [new], a) == (at % 4 != 2)
        assert not followed.complete(output, [new])
        output.tokens.append(new)
    assert output.seen <= 2 * len(output)


def test_answers_are_those_of_a_guide_that_begins_anew() -> None:
    """Texts that grow, are cut and go on otherwise; their forks, which go elsewhere."""
    pick, letters = random.Random(3), ids("abc,")
    histories: list[History] = []
    for _ in range(3):
        histories.append(History([1]))
    histories[0].guide = guide()
    for history in histories[1:]:
        history.ruled_as(histories[0])
    guides = [history.guide for history in histories]
    refused = 0
    for _ in range(1500):
        history = pick.choice(histories)
        if pick.random() < 0.1 and history is not histories[0]:
            history.rewind(pick.randrange(history.length + 1))
        path = pick.choices(letters, k=pick.randrange(4))
        token, fresh = pick.choice(letters), guide()
        asked: tuple[Any, Any] = history.output, path
        assert history.guide is not None
        found = history.guide.allows(*asked, token)
        assert found == fresh.allows(*asked, token)
        assert history.guide.valid(*asked) == fresh.valid(*asked)
        assert history.guide.complete(*asked) == fresh.complete(*asked)
        refused += not found
        if found and pick.random() < 0.5:
            history.append([*path, token])
        history.ruled_as(histories[0]) if history is not histories[0] else None
    assert 100 < refused < 1400 and max(history.length for history in histories) > 50
    assert guides == [history.guide for history in histories]  # one fork each
    histories[0].forget()
    histories[1].ruled_as(histories[0])
    assert histories[1].guide is None


def test_a_text_that_goes_on_was_looked_at_once(monkeypatch: Any) -> None:
    """A resumed text's tokens too are asked about one by one."""
    asked: list[int] = []
    complete = Guide.complete

    def counted(self: Guide, output: Sequence[int], path: Sequence[int] = ()) -> bool:
        asked.append(len(path))
        return complete(self, output, path)

    monkeypatch.setattr(Guide, "complete", counted)
    written = ids("ab,a,bb,c")
    params = dp.SamplingParams(grammar=GRAMMAR, resume=written, max_tokens=12)
    (done,) = llm().generate("x = ", params)
    assert done.token_ids[: len(written)] == written
    assert len(asked) >= 12 and max(asked) <= 1


def test_what_a_grammar_forbids_was_not_written_before() -> None:
    written = ids("ab,a")
    for cut in range(len(written)):
        wrong = [*written[:cut], *ids("7")]
        params = dp.SamplingParams(grammar=GRAMMAR, resume=wrong, max_tokens=12)
        with pytest.raises(ValueError, match=f"at position {cut}, which the grammar keeps from"):
            llm().generate("x = ", params)
