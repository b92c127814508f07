"""A batch told line by line, and written by several engines of which some are lost; without Ray."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import serving
from batches import line, some, write
from draftproof.batch import engines
from draftproof.batch.calls import Calls
from draftproof.batch.engines import Idle, Lost, Ready, Shared, Told
from draftproof.batch.lines import Input, Line
from draftproof.batch.run import Batch, Done

DEFAULTS = {"max_tokens": None, "temperature": 1.0}


def asked(folder: Path, count: int = 12) -> Input:
    """Lines of different lengths; some are refused."""
    bodies = [{"prompt": [5, 6, at], "max_tokens": 2 + 5 * (at % 4)} for at in range(count)]
    bodies[3]["max_tokens"] = 10**6
    lines = [line(str(at), body) for at, body in enumerate(bodies)]
    return Input(write(folder / "in.jsonl", lines))


def told(every: list[Done]) -> dict[str, str]:
    found = {each.id: json.dumps(each.answer, sort_keys=True) for each in every}
    assert len(found) == len(every)
    return found


def test_a_line_is_told_while_others_are_written(tmp_path: Path) -> None:
    """And what was told before somebody stopped listening need not be written again."""
    given = asked(tmp_path)
    with serving.llm(speculate=None) as llm:
        calls = Calls(llm, "m", DEFAULTS)
        whole = told(list(Batch(calls).write(given.lines)))
    assert whole.keys() == given.by_id.keys()
    with serving.llm(speculate=None) as llm:
        stream = Batch(Calls(llm, "m", DEFAULTS)).write(given.lines)
        first = [next(stream) for _ in range(4)]
        assert llm.engine.scheduler.running
        first = pickle.loads(pickle.dumps(first))  # as it comes from another process
    rest = [each for each in given.lines if each.id not in {done.id for done in first}]
    with serving.llm(speculate=None) as llm:
        assert told(first + list(Batch(Calls(llm, "m", DEFAULTS)).write(rest))) == whole


class Fakes:
    """Engines that answer without a model, one word of each in turn, and are lost as told.

    lost: how much each engine still tells, in the order in which they are started; those that are
    not listed live on.
    """

    def __init__(self, *lost: int, writers: Sequence[Any] = ()) -> None:
        self._lost, self._writers = iter(lost), iter(writers)
        self._lives: dict[int, float] = {}
        self._news: dict[int, Iterator[Told]] = {}
        self.started, self.gone, self.given = 0, 0, list[tuple[int, list[Line]]]()

    def start(self, number: int) -> None:
        self.started += 1
        self._lives[number] = next(self._lost, float("inf"))
        self._news[number] = iter([Ready({"model": next(self._writers, "same")})])

    def give(self, number: int, lines: Sequence[Line]) -> None:
        assert number not in self._news, "it has lines, or is not there yet"
        self.given.append((number, list(lines)))
        done: list[Told] = [Done(each.id, each.number, {"id": each.id}) for each in lines]
        self._news[number] = iter([*done, Idle()])

    def next(self) -> tuple[int, Told]:
        number = next(iter(self._news))
        if self._lives[number] == 0:
            del self._news[number]
            self.gone += 1
            return number, Lost("killed")
        self._lives[number] -= 1
        news = next(stream := self._news.pop(number))
        if isinstance(news, Done):
            self._news[number] = stream  # behind the others
        return number, news


def written(fakes: Fakes, given: Input, count: int = 2, places: int = 3) -> list[str]:
    """The ids of answers as they come."""
    ids = list[str]()
    writers = list[Any]()
    engines.write(
        given.lines, fakes, count, places, writers.append, lambda done: ids.append(done.id)
    )
    assert all(each == {"model": "same"} for each in writers)
    return ids


@pytest.mark.parametrize(
    "lost",
    [
        (),
        (1,),
        (4, 4),
        (0, 9),
        (2, 2, 2, 2, 2, 2),
        (3, 1, 4, 1, 5),
        (7,),
        (0, 0),
        (1, 1, 2, 1),
        (1, 1, 1, 1, 1, 2),
    ],
)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_lines_of_lost_engines_are_written_by_others(
    tmp_path: Path, lost: tuple[int, ...], count: int
) -> None:
    """Each line has one answer, whoever is lost when."""
    given, fakes = asked(tmp_path, 40), Fakes(*lost)
    assert sorted(written(fakes, given, count)) == sorted(given.by_id)
    assert fakes.started == count + fakes.gone
    assert fakes.gone or not lost


def test_engines_that_are_always_lost(tmp_path: Path) -> None:
    """Three in a row end it; an answer between begins the count anew."""
    given = asked(tmp_path, 9)
    for lost in ((0, 0, 0), (1, 1, 1), (1, 0, 1), (2, 0, 0)):
        fakes = Fakes(*lost)
        with pytest.raises(ValueError, match=r"3 engines in a row .* \(the last one: killed\)"):
            written(fakes, given, 1)
        assert fakes.gone == len(lost)
    assert len(written(Fakes(0, 0, 2, 0), given, 1)) == 9
    with pytest.raises(ValueError, match="6 engines in a row"):
        written(Fakes(*[1] * 9), given, 2)


def test_shares_shrink_and_begin_alike(tmp_path: Path) -> None:
    given, fakes = asked(tmp_path, 60), Fakes()
    written(fakes, given)
    assert [line for _, lines in fakes.given for line in lines] == given.lines
    sizes = [len(lines) for _, lines in fakes.given]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 15 and sum(sizes) == 60
    assert max(sizes[-2:]) <= 3 and {number for number, _ in fakes.given} == {0, 1}
    shared = Shared(given.lines, 1, 4)
    first = shared.take(0)
    shared.done(0, first[0].id)
    shared.give_back(0)
    assert shared.take(0)[: len(first) - 1] == first[1:]


def test_another_kernel_gets_no_line(tmp_path: Path) -> None:
    """What `ready` has against an engine ends it before that one has written a word."""
    fakes, given = Fakes(writers=["same", "other"]), asked(tmp_path, 8)

    def ready(writer: Any) -> None:
        if writer != {"model": "same"}:
            raise ValueError("begun with another model")

    with pytest.raises(ValueError, match="another model"):
        engines.write(given.lines, fakes, 2, 3, ready, lambda done: None)
    assert {number for number, _ in fakes.given} == {0}


def test_no_ray(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = write(tmp_path / "in.jsonl", some(3))
    words = ["batch", str(asked), "--out", str(tmp_path / "o.jsonl"), "--target", "T", "--ray", "2"]
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "draftproof.ray.batch", raising=False)
    result = run(*words)
    assert result.code == 2 and result.err.count("\n") == 1
    assert "--ray needs ray, which is not installed: pip install 'draftproof[ray]'" in result.err
    assert not (tmp_path / "o.jsonl").exists()


@pytest.mark.parametrize("name", ["gpt-4o-mini", "llama3.2"])
def test_lines_that_name_no_model_of_these(run: Any, tmp_path: Path, name: str) -> None:
    lines = [each | {"body": each["body"] | {"model": name}} for each in some(3)]
    asked = write(tmp_path / "in.jsonl", lines)
    result = run("batch", str(asked), "--out", str(tmp_path / "o.jsonl"))
    assert result.code == 2 and result.err.count("\n") == 1
    assert name in result.err and "--target MODEL answers them with another one" in result.err
    assert not (tmp_path / "o.jsonl").exists()
