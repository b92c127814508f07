"""`draftproof batch`: the answers of the server, whole whatever was cut off on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import draftproof as dp
import encoder_folders
import serving
from batches import CHAT, TEXT, answers, in_order, line, some, statistics, write
from draftproof import memory
from draftproof.batch.calls import Calls
from draftproof.batch.lines import Input
from draftproof.batch.results import Results
from draftproof.batch.run import Batch, Run, left
from draftproof.engine import Engine

OPTIONS = ("--target", "T", "--dtype", "float64", "--quiet")


@pytest.fixture
def batch(run: Any, tmp_path: Path) -> Any:
    """Runs a batch of these lines; its result and its output."""

    def batch(lines: list[Any], *options: str, out: str = "out.jsonl") -> tuple[Any, Path]:
        path = write(tmp_path / "in.jsonl", lines)
        result = run("batch", str(path), "--out", str(tmp_path / out), *OPTIONS, *options)
        return result, tmp_path / out

    return batch


def test_the_texts_of_the_library(batch: Any, pair: Path, tmp_path: Path) -> None:
    lines = some(20, scored=True)
    result, out = batch(lines, "--draft", "D")
    assert result == (0, "", "")
    found, seeds = answers(out), {each.custom_id: each.seed for each in _input(tmp_path).lines}
    assert len(set(seeds.values())) == len(seeds)
    with dp.LLM(pair / "target", dtype="float64", speculate=None) as llm:
        for each in lines:
            name, body = each["custom_id"], dict(each["body"])
            prompt = body.pop("prompt")
            del body["model"]
            params = dp.SamplingParams(**{"temperature": 1.0, "seed": seeds[name], **body})
            response = found[name]["response"]
            assert response["status_code"] == 200 and found[name]["error"] is None
            wanted = llm.generate(prompt, params)
            choices = response["body"]["choices"]
            assert [one["text"] for one in choices] == [one.text for one in wanted]
            assert [one["finish_reason"] for one in choices] == [o.finish_reason for o in wanted]
            usage = response["body"]["usage"]
            assert usage["completion_tokens"] == sum(len(one.token_ids) for one in wanted)
            if body.get("logprobs"):
                kept = choices[0]["logprobs"]["token_logprobs"]
                own = zip(wanted[0].token_ids, wanted[0].logprobs or (), strict=True)
                assert kept == pytest.approx([of[token] for token, of in own])


def test_an_encoder_decoder_reads_the_prompts(batch: Any, tmp_path: Path) -> None:
    folder = encoder_folders.saved(tmp_path / "T5")
    body = {"prompt": "c b d c b", "max_tokens": 6, "temperature": 0}
    starts = [{"decoder_prompt": each} for each in ([5, 6], "ba bo", 1.5)]
    lines = [line(str(at), body | each) for at, each in enumerate([{}, *starts, {"echo": True}])]
    result, out = batch(lines, "--target", str(folder))
    said = "line 4: decoder_prompt must be text or token ids\nline 5: echo cannot be followed: "
    said += "an encoder-decoder's text does not go on from its prompt\n"
    assert (result.code, result.err) == (1, said)
    found = answers(out)
    assert [found[name]["response"]["status_code"] for name in "34"] == [400, 400]
    with dp.LLM(str(folder), dtype="float64", speculate=None) as llm:
        for name, given in ("0", None), ("1", [5, 6]), ("2", "ba bo"):
            (choice,) = found[name]["response"]["body"]["choices"]
            params = dp.SamplingParams(temperature=0, max_tokens=6)
            (wanted,) = llm.generate("c b d c b", params, decoder_prompt=given)
            assert choice["text"] == wanted.text


def _input(folder: Path) -> Input:
    return Input(folder / "in.jsonl")


def test_what_an_answer_has(batch: Any) -> None:
    """The shape that clients read, and neither times nor counts of how it was written."""
    result, out = batch([line("a", {"model": "m", "prompt": "def f(x):", "max_tokens": 3})])
    told = answers(out)["a"]
    assert result.code == 0 and [*told] == ["id", "custom_id", "response", "error"]
    assert [*told["response"]] == ["status_code", "request_id", "body"]
    body = told["response"]["body"]
    assert [*body] == ["id", "object", "created", "model", "choices", "usage"]
    assert (body["object"], body["created"], body["model"]) == ("text_completion", 0, "m")
    assert [*body["usage"]] == ["prompt_tokens", "completion_tokens", "total_tokens"]
    head, stats, ran = statistics(out)
    assert head["of"] == _input(out.parent).digest and head["written_by"]["sampling"]
    assert stats["id"] == told["id"] and stats["tokens"] == 3 and stats["seconds"] > 0
    assert ran["run"]["tokens"] == 3


@pytest.mark.parametrize("at", [0, 200, 1500, -40])
def test_it_goes_on_wherever_it_was_cut(batch: Any, at: int) -> None:
    """A killed process leaves the beginning of both files."""
    lines = some(12)
    _, whole = batch(lines, "--draft", "D")
    _, out = batch(lines, "--draft", "D", out="cut.jsonl")
    raw = out.read_bytes()
    out.write_bytes(raw[:at])
    stats = out.with_name("cut.jsonl.stats.jsonl")
    stats.write_bytes(stats.read_bytes()[:-7])
    result, _ = batch(lines, "--max-batch", "2", out="cut.jsonl")
    assert result.code == 0 and in_order(out) == in_order(whole)
    assert out.read_bytes().startswith(raw[: raw[:at].rfind(b"\n") + 1])
    assert all(statistics(out))
    again, _ = batch(lines, out="cut.jsonl")
    assert again.code == 0 and in_order(out) == in_order(whole)


def test_nothing_is_written_twice(batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = some(5)
    _, out = batch(lines)
    before = out.read_bytes()
    monkeypatch.setattr(Engine, "step", None)
    result, _ = batch(lines)
    assert result.code == 0 and out.read_bytes() == before


def test_an_interrupt_keeps_what_is_finished(batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, step, left = some(12), Engine.step, iter(range(9))

    def interrupted(engine: Engine) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return step(engine)

    _, whole = batch(lines, out="whole.jsonl")
    with monkeypatch.context() as patched:
        patched.setattr(Engine, "step", interrupted)
        result, out = batch(lines, "--max-batch", "2")
    assert result.code == 130 and 0 < len(answers(out)) < len(lines)
    result, _ = batch(lines, "--max-batch", "2")
    assert result.code == 0 and in_order(out) == in_order(whole)


def test_lines_that_begin_alike_are_read_once(batch: Any) -> None:
    """In the file they take turns, with more of other kinds between them than there are rows."""
    heads = [f"# {n}\n" + f"import module_{n}\n" * 12 for n in range(6)]
    lines = [
        line(f"{at} {n}", {"model": "m", "prompt": head + f"x = {at}", "max_tokens": 2})
        for at in range(4)
        for n, head in enumerate(heads)
    ]
    result, out = batch(lines, "--max-batch", "1")
    assert result.code == 0
    stats = statistics(out)[1:-1]
    read = sum(each["prompt_tokens"] - each["cached_tokens"] for each in stats)
    asked = sum(each["prompt_tokens"] for each in stats)
    assert asked / 4 <= read < asked / 3


def test_wrong_lines_are_told_and_the_rest_is_done(batch: Any) -> None:
    good = {"model": "m", "prompt": "x =", "max_tokens": 2}
    wrong: list[tuple[Any, str]] = [
        ("{", "it is no JSON"),
        ("[1]", "it is no JSON object"),
        (line(None, good), "it has no custom_id"),
        (line("good", good), "custom_id 'good' is that of line 1"),
        (line("method", good) | {"method": "GET"}, "method is 'GET'"),
        (line("url", good, "/v1/embeddings"), "url is '/v1/embeddings': a batch has /v1/chat"),
        (line("body", 3), "it has no body"),  # type: ignore[arg-type]
        (line("field", good, priority=1), "'priority' is unknown"),
        (line("m", good | {"model": "other"}), "model is 'other'"),
        (line("s", good | {"stream": True}), "stream cannot be followed"),
        (line("t", good | {"timings": True}), "timings is not told"),
        (line("r", good | {"rule": "rejection"}), "rule 'rejection' cannot be followed"),
        (line("k", good | {"tools": [1]}), "tools cannot be followed"),
        (line("p", {"model": "m"}), "there is no prompt"),
        (line("l", good | {"max_tokens": 10**6}), "the context ends"),
        (line("c", {"model": "m", "messages": []}, CHAT), "messages is empty"),
        (line("b", good | {"bad_token_ids": list(range(4096)), "min_p": 2}), "min_p is 2"),
    ]
    result, out = batch([line("good", good), *[each for each, _ in wrong], "", line("end", good)])
    assert result.code == 1 and "Traceback" not in result.err
    listed = [json.loads(each) for each in out.read_text().splitlines()]
    assert len(listed) == len(wrong) + 2 == len({each["id"] for each in listed})
    by_id = {each["id"]: each for each in listed}
    lines = _input(out.parent).lines
    assert [each.number for each in lines] == [*range(1, len(wrong) + 2), len(wrong) + 3]
    for number, (_, said) in enumerate(wrong, 2):
        told = by_id[lines[number - 1].id]
        named = [each for each in result.err.split("\n") if each.startswith(f"line {number}: ")]
        assert any(said in each for each in named), said
        error = told["error"] or told["response"]["body"]["error"]
        assert said in error["message"], told
        assert told["response"] is None or told["response"]["status_code"] in (400, 404)
    for name in ("good", "end"):
        (told,) = [each for each in listed if each["custom_id"] == name and not each["error"]]
        assert told["response"]["status_code"] == 200
    again, _ = batch([line("good", good), *[each for each, _ in wrong], "", line("end", good)])
    assert again.code == 1 and len(out.read_text().splitlines()) == len(listed)


def test_a_file_of_errors_alone_needs_no_model(batch: Any) -> None:
    result, out = batch(["nothing", "at all"])
    assert result.code == 1 and len(out.read_text().splitlines()) == 2
    assert batch(["nothing", "at all"])[0].code == 1


def test_a_text_that_others_had_no_memory_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written does not depend on who else had the memory: it is written again, alone."""
    monkeypatch.setattr(memory, "OPEN", 64)
    body = {"prompt": [5, 6], "ignore_eos": True, "logit_bias": {"1": -2}}
    asked = Input(write(tmp_path / "in.jsonl", [line(str(at), body) for at in range(4)]))
    outs, again = [], []
    for number, slots in enumerate((1 << 14, 1200)):
        with serving.llm(speculate=None, kv_memory="1GB") as llm:
            llm.memory.total = slots * llm.memory.slot_bytes
            out = tmp_path / f"{number}.jsonl"
            with Results(out, asked.digest, asked.by_id.__contains__) as results:
                results.written_by({})
                calls = Calls(llm, "m", {"max_tokens": None, "temperature": 1.0})
                done = Run()
                begin = Mock(wraps=calls.begin)
                monkeypatch.setattr(calls, "begin", begin)
                for each in Batch(calls).write(left(asked.lines, results)):
                    done.take(each, results)
                assert done.failed == []
        outs.append(in_order(out))
        again.append(begin.call_count - len(asked.lines))
    assert again[0] == 0 < again[1] and outs[0] == outs[1]
    lengths = [json.loads(each)["response"]["body"]["usage"]["total_tokens"] for each in outs[0]]
    assert lengths == [serving.CONTEXT] * 4


def test_another_writer_is_refused(batch: Any) -> None:
    lines = some(4)
    _, out = batch(lines)
    out.write_bytes(out.read_bytes()[:100])
    before = out.with_name("out.jsonl.stats.jsonl").read_bytes()
    for options, said in [
        (("--temperature", "0.5"), "begun with another sampling"),
        (("--dtype", "float32"), "begun with another model"),
    ]:
        result, _ = batch(lines, *options)
        assert result.code == 2 and said in result.err, result.err
    assert out.with_name("out.jsonl.stats.jsonl").read_bytes() == before
    assert batch(lines)[0].code == 0
    assert batch(lines, "--temperature", "0.5")[0].code == 2  # now that it is whole, too
    told = [batch(lines, *more)[0].err for more in ((), ("--dtype", "float32"))]
    assert ["in float32 was not loaded: give" in said for said in told] == [False, True]


def test_what_is_in_the_way_stays(batch: Any, run: Any, tmp_path: Path) -> None:
    lines = some(3)
    _, out = batch(lines)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    result, _ = batch(some(4))
    assert result.code == 2 and "is not what a batch wrote for this input" in result.err
    write(tmp_path / "in.jsonl", lines)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    own = tmp_path / "own.jsonl"
    own.write_text("mine")
    result, _ = batch(lines, out="own.jsonl")
    assert result.code == 2 and own.read_text() == "mine"
    assert not (tmp_path / "own.jsonl.stats.jsonl").exists()
    (tmp_path / "new.jsonl.stats.jsonl").write_text("mine too\n")
    result, _ = batch(lines, out="new.jsonl")
    assert result.code == 2 and not (tmp_path / "new.jsonl").exists()
    with out.open("ab") as file:
        file.write(out.read_bytes().splitlines(keepends=True)[0])
    result, _ = batch(lines)
    assert result.code == 2 and "line 4 of" in result.err
    for path in ("in.jsonl", "link.jsonl"):
        if path != "in.jsonl":
            (tmp_path / path).symlink_to(tmp_path / "in.jsonl")
        result, _ = batch(lines, out=path)
        assert result.code == 2 and "is the input itself" in result.err
    result = run("batch", str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "x.jsonl"))
    assert result.code == 2 and "cannot read the batch" in result.err
    write(tmp_path / "empty.jsonl", [])
    result = run("batch", str(tmp_path / "empty.jsonl"), "--out", str(tmp_path / "x.jsonl"))
    assert result.code == 2 and "has no line" in result.err
    write(tmp_path / "nameless.jsonl", [line("a", {"prompt": "x"}, TEXT)])
    result = run("batch", str(tmp_path / "nameless.jsonl"), "--out", str(tmp_path / "x.jsonl"))
    assert result.code == 2 and "add --target MODEL" in result.err


def test_one_process_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Results(out, "input", {"a"}.__contains__) as first:
        first.written_by({})
        with pytest.raises(ValueError, match="is being written by another process"):
            Results(out, "input", {"a"}.__contains__)
        first.add({"id": "a", "response": None}, {})
    with Results(out, "input", {"a"}.__contains__) as second:
        assert second.done == {"a"} and second.wrong == 1
