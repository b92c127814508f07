"""Peers as processes: what they answer becomes sides of the one comparison."""

from __future__ import annotations

from typing import Any

from draftproof.bench.compare import Comparison
from draftproof.bench.sides import How
from draftproof.prompts import Prompt
from peer_parts import Bench
from peer_sides import Failed
from spelling import tokenizer

WORDS = [10, 11, 12]


class Process:
    """Answers as a worker does: a second for what is plain, less with longer drafts."""

    def __init__(self, name: str, **answers: Any) -> None:
        self.name, self.answers = name, answers
        self.asked: list[dict[str, Any]] = []

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        self.asked.append(details)
        method = details.get("method", "plain")
        answer = self.answers.get(method, {"ids": WORDS, "tokens": 3})
        if isinstance(answer, str):
            raise Failed(answer)
        return {"seconds": 1.0 / details.get("length", 1), **answer}


def test_processes_write_in_one_comparison() -> None:
    text = {"text": tokenizer().decode([*WORDS, 13]), "tokens": 4}
    own = Process("draftproof")
    peer = Process("peer", plain=text, draft={"ids": [9, 9], "tokens": 2}, lookup="has none")
    processes: Any = {"peer": peer, "draftproof": own}
    bench = Bench(processes, 2, lambda text: None)
    prompts = [Prompt("1", ("ab",)), Prompt("2", ("abc",))]
    how = How(0.0, 3, 0, True)
    bench.writing(Comparison([], prompts, tokenizer(), how, lambda text, share: None), True, (2, 4))
    cases = {(case.side, case.method): case for case in bench.found.cases}
    assert list(cases)[0] == ("draftproof", "none")
    assert {key for key in cases if key[0] == "peer"} == {
        *(("peer", "none"), ("peer", "draft"), ("peer", "merged"))
    }
    assert bench.found.skipped == {"peer: lookup": "has none"}
    assert cases["draftproof", "draft"].length == 4
    assert cases["draftproof", "draft"].tried == {2: 6.0, 4: 12.0}
    assert cases["draftproof", "none"].tokens_per_s == [3.0, 3.0]
    assert cases["peer", "none"].tokens_per_s == [4.0, 4.0]  # by its own account
    assert cases["peer", "none"].differing == 0  # it begins as wanted
    assert cases["peer", "draft"].differing == 2
    assert own.asked[0]["text"] == "ab" and own.asked[0]["max_tokens"] == 3


def test_a_process_that_fails_in_one_part_is_out_of_it_alone() -> None:
    class Deaf(Process):
        def ask(self, do: str, **details: Any) -> dict[str, Any]:
            if do == "pass" and len(self.asked) == 2:
                raise Failed("no answer")
            return super().ask(do, **details)

    processes: Any = {"a": Process("a"), "b": Deaf("b")}
    bench = Bench(processes, 2, lambda text: None)
    bench.passes((1, 2), 8)
    bench.prompts((16,))
    assert bench.found.skipped == {"b: passes": "no answer"}
    assert [len(each) for each in bench.found.passes["a"].values()] == [2, 2]
    assert bench.found.prompts["b"] == {16: [1.0, 1.0]}
