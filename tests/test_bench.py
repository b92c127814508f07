"""The comparison: every side writes the same prompts, and what is reported is what was counted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import draftproof as dp
import tiny
from draftproof.bench import bundled, pages, report, sides, suite
from draftproof.bench.compare import Answer, Comparison, Result, Spread, best_assistant, judge
from draftproof.bench.sides import How, Side, Written
from draftproof.prompts import Prompt
from spelling import model, tokenizer

ALONE = ("--max-tokens=4", "--num-prompts=1", "--rounds=1", "--methods=none", "--against=")
HOW = How(temperature=0.0, max_tokens=12, seed=3, ignore_eos=True)
IDS = [[5, 6, 7, 5, 6], [9, 8, 7, 9, 8, 7, 9]]


# --- sides ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignore_eos", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_all_sides_write_the_same_greedily(temperature: float, ignore_eos: bool) -> None:
    draft, how = tiny.relative(model()), How(temperature, 12, 3, ignore_eos)
    plain = dp.LLM(model())
    ends = plain.end_ids
    everyone = [
        sides.ours("none", plain),
        sides.ours("ngram", dp.LLM(model(), speculate="ngram")),
        sides.ours("draft", dp.LLM(model(), speculate=dp.DraftModel(draft))),
        sides.transformers("", model(), ends),
        sides.transformers("lookup", model(), ends, batches=False, prompt_lookup_num_tokens=3),
        sides.assisted(model(), draft, ends, None),
        sides.assisted(model(), draft, ends, 3),
    ]
    reference = everyone[0].write(IDS, how)
    assert [len(w.token_ids) for w in reference] == [12, 12] or not ignore_eos
    for side in everyone:
        together = side.write(IDS, how) if side.batches else []
        alone = [side.write([ids], how)[0] for ids in IDS]
        if temperature == 0 or not side.peer:
            assert [w.token_ids for w in alone] == [w.token_ids for w in reference], side.name
            assert not together or [w.token_ids for w in together] == [
                w.token_ids for w in reference
            ]
        for written in alone:
            assert written.per_step is None or sum(written.per_step) == len(written.token_ids)
    assert model().generation_config.eos_token_id == 2
    assert getattr(draft.generation_config, "num_assistant_tokens", None) in (None, 20)


def test_steps_are_told_apart() -> None:
    assert sides._per_step([True, True, False, False, True]) == [3, 1, 1]
    assert sides._per_step([]) == []


def test_it_is_counted_what_was_drafted() -> None:
    llm = dp.LLM(model(), speculate=dp.DraftModel(tiny.relative(model()), 3, branch=2))
    side = sides.ours("draft", llm)
    assert side.drafted is not None
    (written,) = side.write(IDS[:1], HOW)
    assert written.stats is not None
    assert side.drafted.nodes - side.drafted.trees == written.stats.drafted
    assert 0 < side.drafted.depth < written.stats.drafted and side.drafted.seconds > 0
    side.drafted.reset()
    assert side.drafted == type(side.drafted)()


@pytest.mark.parametrize("method", [dp.Lookahead, lambda: dp.Hybrid([dp.NGram(), dp.Lookahead()])])
def test_a_side_drafts_as_generate_does(method: Any) -> None:
    """Lookahead reads the target's picks for its window: a wrapper that drops that drafts worse."""
    params = dp.SamplingParams(max_tokens=48, ignore_eos=True, seed=3)
    (wanted,) = dp.LLM(model(), speculate=method()).generate(IDS[:1], params)
    how = How(temperature=0.0, max_tokens=48, seed=3, ignore_eos=True)
    (written,) = sides.ours("lookahead", dp.LLM(model(), speculate=method())).write(IDS[:1], how)
    assert written.stats is not None and wanted.stats.steps < 48
    assert written.stats.steps == wanted.stats.steps


# --- comparing ------------------------------------------------------------------------------------


class Scripted:
    """Writes what it is told, and remembers in what order everyone was asked."""

    log: list[str]

    def __init__(self, name: str, tokens: int, log: list[str], peer: bool = False) -> None:
        self.name, self.tokens, self.log = name, tokens, log
        self.side = Side(name, self.write, peer=peer)

    def write(self, prompts: Sequence[list[int]], how: How) -> list[Written]:
        self.log.append(self.name)
        return [Written([7] * self.tokens) for _ in prompts]


def comparison(*everyone: Side, batch: int = 1, prompts: int = 3) -> Comparison:
    texts = [Prompt(str(i), ("ab" * (i + 1),)) for i in range(prompts)]
    return Comparison(list(everyone), texts, tokenizer(), HOW, batch, 96, lambda: None)


def test_sides_take_turns_and_nobody_is_always_first() -> None:
    log: list[str] = []
    names = ["a", "b", "c"]
    it = comparison(*(Scripted(name, 4, log).side for name in names))
    results = it.warm_up(model())
    log.clear()
    for turn in range(3):
        it.run(results, turn)
    triples = [log[at : at + 3] for at in range(0, len(log), 3)]
    assert all(sorted(triple) == names for triple in triples) and len(triples) == 9
    assert {triple[0] for triple in triples[:3]} == set(names)
    assert all(len(result.tokens_per_s) == 3 for result in results.values())


def test_a_batch_is_written_at_once() -> None:
    log: list[str] = []
    it = comparison(Scripted("a", 4, log).side, batch=2)
    results = it.warm_up(model())
    it.run(results, 0)
    assert len(log) == 4  # two groups, twice
    (result,) = results.values()
    assert [answer.prompt.id for answer in result.answers] == ["0", "1", "2"]
    total = result.answers[0].seconds[0] + result.answers[2].seconds[0]
    assert result.tokens_per_s[0] == pytest.approx(12 / total)


def test_a_peer_that_fails_is_skipped_and_ours_is_not() -> None:
    def fail(prompts: Sequence[list[int]], how: How) -> list[Written]:
        raise RuntimeError("no kernel")

    log: list[str] = []
    it = comparison(Scripted("a", 4, log).side, Side("p", fail, peer=True))
    assert list(it.warm_up(model())) == ["a"]
    assert it.skipped == ["p: RuntimeError: no kernel"]
    with pytest.raises(RuntimeError, match="no kernel"):
        comparison(Side("ours", fail)).warm_up(model())


def test_a_prompt_that_does_not_fit_is_named() -> None:
    it = comparison(Scripted("a", 4, []).side)
    it.longest = 14
    with pytest.raises(ValueError, match="prompt 1 has 4 tokens"):
        it.warm_up(model())


def test_the_passes_of_the_target_are_counted() -> None:
    llm = dp.LLM(model(), speculate=dp.DraftModel(tiny.relative(model(), 0.001), 3))
    it = comparison(sides.ours("draft", llm), sides.transformers("", model(), llm.end_ids))
    results = it.warm_up(model())
    assert results["transformers"].tokens_per_step == 1.0
    ours = results["draftproof draft"].tokens_per_step
    assert ours is not None and 2 < ours <= 4


def test_the_fastest_assistant_is_taken() -> None:
    import time

    def slow(prompts: Sequence[list[int]], how: How) -> list[Written]:
        time.sleep(0.02)
        return [Written([7] * 4) for _ in prompts]

    it = comparison(Scripted("a", 4, []).side)
    fast = Scripted("fast", 4, []).side
    assert best_assistant([Side("slow", slow), fast], it) == (fast, [])

    def fail(prompts: Sequence[list[int]], how: How) -> list[Written]:
        raise RuntimeError("broken")

    assert best_assistant([Side("x", fail)], it) == (
        None,
        ["transformers assistant: RuntimeError: broken"],
    )


def test_ratios_are_those_of_the_same_round() -> None:
    spread = Spread.of([2.0, 9.0, 8.0], [1.0, 3.0, 2.0])
    assert (spread.median, spread.low, spread.high) == (3.0, 2.0, 4.0)


def test_judgement() -> None:
    prompt = Prompt("0", ("ab",))
    mine = [
        Result("draftproof none", 0.0, 1, [10.0, 12.0, 11.0], 1.0),
        Result("transformers", 0.0, 1, [5.0, 6.0, 11.0], 1.0),
    ]
    mine[0].answers = [Answer(prompt, [Written([1, 2])]), Answer(prompt, [Written([3])])]
    mine[1].answers = [Answer(prompt, [Written([1, 2])]), Answer(prompt, [Written([4])])]
    both = [Scripted("a", 1, []).side, Scripted("b", 1, [], peer=True).side]
    judge(mine, both, {1: 0.01, 4: 0.02})
    assert mine[1].differing == 1 and mine[0].differing == 0
    assert mine[1].of_plain == Spread(0.5, 0.5, 1.0)
    assert mine[0].of_transformers == Spread(2.0, 1.0, 2.0)
    mine[1].temperature = mine[0].temperature = 0.7
    mine[1].differing = None
    judge(mine, both, {1: 0.01})
    assert mine[1].differing is None  # other noise


# --- the command ----------------------------------------------------------------------------------


def test_the_command_from_end_to_end(run: Any, tmp_path: Path) -> None:  # noqa: F811
    out = tmp_path / "deep" / "results"
    words = "--draft D --max-tokens 8 --num-prompts 2 --rounds 2 --temperature 0 --temperature 0.7"
    result = run(
        *("bench", "T", *words.split(), "--export", "spec-bench", "--out", str(out)),
        *("--against", "transformers,vllm", "--methods", "none,ngram,draft,ngram+draft"),
    )
    assert result.code == 0, result.err
    assert "draftproof ngram+draft" in result.out and "vllm: not known here" in result.out
    (file,) = out.glob("*.json")
    found = json.loads(file.read_text())
    assert found["prompts"] == 2 and found["environment"]["torch"]
    assert len(found["results"]) == 2 * (4 + 3)
    for each in found["results"]:
        assert len(each["tokens_per_s"]) == 2
        sampled_peer = each["temperature"] and each["side"].startswith("transformers")
        assert each["differing"] == (None if sampled_peer else 0)
        assert each["of_plain"]["low"] <= each["of_plain"]["median"] <= each["of_plain"]["high"]
        if each["side"] == "draftproof draft":
            assert each["predicted"]["speedup"] > 0 and "plain steps" in each["why"]
            assert 0 < each["acceptance"]["alpha"] <= 1
    assert (out / f"{file.stem}.png").read_bytes().startswith(b"\x89PNG")
    lines = (out / f"{file.stem}-draftproof-draft-T0-batch1.jsonl").read_text().splitlines()
    (choice,) = json.loads(lines[0])["choices"]
    assert choice["new_tokens"] == [8] and sum(choice["accept_lengths"]) == 8
    assert choice["decoding_steps"] == [len(choice["accept_lengths"])] and len(lines) == 2
    text = pages.page([("a-run", found)])
    assert "## a run" in text and text.count("| draftproof draft |") == 2


def test_batches_leave_out_who_takes_one_prompt(run: Any, tmp_path: Path) -> None:  # noqa: F811
    words = "--draft D --max-tokens 6 --num-prompts 3 --rounds 1 --batch 2"
    result = run("bench", "T", *words.split(), "--out", str(tmp_path))
    assert result.code == 0 and "they take one prompt at once" in " ".join(result.out.split())
    (file,) = tmp_path.glob("*.json")
    names = [each["side"] for each in json.loads(file.read_text())["results"]]
    assert names == ["draftproof none", "draftproof ngram", "draftproof draft", "transformers"]


def test_without_matplotlib_there_is_no_picture(
    run: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "draw", lambda *_: False)
    result = run("bench", "T", *ALONE, "--out", str(tmp_path))
    assert result.code == 0 and "draftproof[bench]" in result.err
    assert len(list(tmp_path.iterdir())) == 1


def test_results_that_cannot_be_written_still_print_the_table(
    run: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    result = run("bench", "T", *ALONE, "--out", str(tmp_path / "file" / "below"))
    assert result.code == 2 and "cannot write results" in result.err
    assert "draftproof none" in result.out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--methods draft", "--draft MODEL"),
        ("--methods medusa", "needs heads"),
        ("--methods eagle", "unknown"),
        ("--rounds 0", "rounds is 0"),
        ("--max-tokens 0", "max_tokens is 0"),
        ("--batch 0", "batch size"),
        ("--num-prompts 0", "num_prompts is 0"),
        ("--temperature -1", "temperature"),
        ("--export csv", "spec-bench"),
        ("--branch 2", "--draft MODEL"),
        ("--prompts missing.jsonl", "cannot read the prompts"),
        ("--inflate none-such", "none-such"),
        ("--max-tokens 250", "exceed"),
    ],
)
def test_bad_input_is_one_sentence(run: Any, line: str, says: str, tmp_path: Path) -> None:  # noqa: F811
    result = run("bench", "T", *line.split(), "--out", str(tmp_path / "out"))
    assert result.code == 2 and says in result.err, result
    assert len(result.err.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


def test_a_draft_of_another_vocabulary_is_refused(
    run: Any,  # noqa: F811
    tmp_path: Path,
    pair: Path,  # noqa: F811
) -> None:
    tiny.model(vocab_size=4096).save_pretrained(tmp_path / "other")
    result = run("bench", "T", "--draft", str(tmp_path / "other"))
    assert result.code == 2 and "8192" in result.err and "4096" in result.err


def test_options_are_checked_before_anything_is_loaded() -> None:
    with pytest.raises(ValueError, match="rounds"):
        suite.run(suite.Options("no/such/model", rounds=0), lambda *_: None)


# --- what the pair has learnt ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("x = 1\ny = ", True),
        ("def f(a):\n    if a:\n        return [\n            1,\n   2", True),
        ("class A:\n    def f(self):\n", True),
        ("x = = 1\ny = 2\n", False),
        ("def f(:\n    pass\nx = 1\n", False),
        ("return )\nx\n", False),
    ],
)
def test_what_counts_as_valid(text: str, valid: bool) -> None:
    assert bundled.parses(text) is valid
