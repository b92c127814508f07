"""The load client's parts: events and their times, arrivals, percentiles, limits, references."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.prompts import Prompt
from draftproof.traffic import arrivals, reference, report, summary
from draftproof.traffic.answers import Answer, Events, Failed, Question
from draftproof.traffic.client import Client, address
from draftproof.traffic.levels import Asked, Level, Sweep
from fake_server import FakeServer, Reply


def answer(**more: Any) -> Answer:
    return Answer(Question("p", 0, "/", {}), **{"asked": "k", "due": 0.0, "sent": 0.0, **more})


def event(text: str | None = None, **more: Any) -> bytes:
    choices = [] if text is None else [{"index": 0, "text": text, "finish_reason": None}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


END = event(choices=[{"index": 0, "text": "", "finish_reason": "length"}])
DONE = b"data: [DONE]\n\n"


def usage(tokens: Any) -> bytes:
    return event(usage={"prompt_tokens": 4, "completion_tokens": tokens})


def test_times_are_those_of_text_and_tokens_those_of_usage() -> None:
    """The first chunk has a role alone, the second one three tokens."""
    one = answer(due=9.5, sent=9.75)
    events = Events(one)
    role = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
    for data, at in ((role, 9.8), (event("abc"), 10.0), (b": keep-alive\n\n", 10.3)):
        events.feed(data, at)
    for data, at in ((event("d"), 10.5), (event("e"), 10.6), (END, 11.0), (usage(5), 11.1)):
        events.feed(data, at)
    events.feed(DONE, 11.2)
    events.end()
    one.ended = 11.2
    assert (one.text, one.tokens, one.read, one.reason) == ("abcde", 5, 4, "length")
    assert one.first_token_s == 0.5 and one.gap == 0.5  # the keep-alive is no text
    assert one.per_token_s == pytest.approx(0.6 / 4) and one.whole_s == pytest.approx(1.7)


def test_text_in_one_piece_has_no_time_per_token() -> None:
    one = answer()
    Events(one).feed(event("abc") + usage(3), 1.0)
    assert one.per_token_s is None and one.first_token_s == 1.0


@given(cuts=st.lists(st.integers(0, 400), max_size=8))
def test_parts_of_any_size(cuts: list[int]) -> None:
    """Within a line and within a character, and lines that end as in Windows."""
    data = b"".join([event("grün"), event("→").replace(b"\n", b"\r\n"), END, usage(2), DONE])
    one = answer()
    events = Events(one)
    places = [0, *sorted(cuts), len(data)]
    for begin, end in zip(places, places[1:], strict=False):
        events.feed(data[begin:end], 0.0)
    events.end()
    assert one.text == "grün→" and one.tokens == 2


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (event("a"), "broken off"),
        (event("a") + END, "broken off"),
        (event("a") + DONE, "broken off"),
        (event("a") + END + DONE, "no usage"),
        *(
            (event("a") + END + usage(count) + DONE, "no usage")
            for count in ("many", -1, True, 10**400)
        ),
        (event("a") + END.replace(b"length", b"abort") + usage(1) + DONE, "abort"),
        (event(error={"message": "no"}), "error"),
        (event(error="no"), "error"),
        (b"data: {\n", "not a chunk"),
        (b"data: []\n", "not a chunk"),
        (b"data: " + b"[" * 10**5 + b"\n", "not a chunk"),
        (b'data: {"choices": [1]}\n', "not a chunk"),
        (b'data: {"choices": [{"text": 1}]}\n', "not a chunk"),
    ],
)
def test_an_answer_that_is_none(data: bytes, kind: str) -> None:
    with pytest.raises(Failed) as failed:
        events = Events(answer())
        events.feed(data, 0.0)
        events.end()
    assert failed.value.kind == kind


def test_arrivals() -> None:
    assert arrivals.fixed(4.0, 3, seed=1) == [0.0, 0.25, 0.5]
    drawn = arrivals.poisson(5.0, 4000, seed=3)
    assert drawn == arrivals.poisson(5.0, 4000, seed=3) != arrivals.poisson(5.0, 4000, seed=4)
    gaps = np.diff([0.0, *drawn])
    # Of 4,000 gaps of an exponential law: mean and deviation 0.2 within five deviations of each.
    assert abs(gaps.mean() - 0.2) < 5 * 0.2 / math.sqrt(4000)
    assert abs(gaps.std() - 0.2) < 5 * 0.2 * math.sqrt(2 / 4000)
    assert abs((gaps > 0.2).mean() - math.exp(-1)) < 5 * 0.5 / math.sqrt(4000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0\n1\nx\n", "line 3: 'x' is no number"),
        ("-1\n", "line 1: '-1' is no number"),
        ("nan\n", "is no number"),
        ("1\n\n0.5\n", "line 3: 0.5 s is before"),
        ("\n", "is empty"),
    ],
)
def test_a_file_of_arrivals(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "times"
    path.write_text("0\n\n0.5\n0.5\n")
    assert arrivals.read(path) == [0.0, 0.5, 0.5]
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        arrivals.read(path)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_percentiles_are_numpys(values: list[float]) -> None:
    found = summary.percentiles(values)
    assert found is not None
    for p in (50, 90, 99):
        assert found[f"p{p}"] == pytest.approx(np.percentile(values, p))
    assert summary.percentiles([]) is None


def timed(first: float, per_token: float, tokens: int = 11, **more: Any) -> Answer:
    last = first + per_token * (tokens - 1)
    counts = {"completion_tokens": tokens, "prompt_tokens": 10}
    times = {"first": first, "last": last, "ended": last, "gap": per_token}
    return answer(usage=counts, **times, **more)


def test_a_summary() -> None:
    failed = timed(0.1, 0.01, fault="429", error="429, later")
    came = [timed(0.1, 0.01), timed(0.2, 0.01), timed(0.1, 0.03)]
    level = Level("2 clients", clients=2, answers=[*came, failed])
    level.seconds, level.processor_s = 2.0, 0.5
    found = summary.summary(level, summary.Limits(first_ms=150, per_token_ms=20))
    assert found["calls"] == 4 and found["failures"] == {"429": 1}
    assert found["tokens"] == 33 and found["tokens_per_s"] == 16.5 and found["calls_per_s"] == 1.5
    assert found["first_token_ms"]["p50"] == pytest.approx(100)
    assert found["per_token_ms"]["p99"] == pytest.approx(10 + 0.98 * 20)
    assert found["good"] == 0.25 and found["good_per_s"] == 0.5  # one is slow, one late, one failed
    assert found["client"]["of_a_core"] == 0.25
    assert found["client"]["us_per_token"] == pytest.approx(5e5 / 33)
    json.dumps(found)
    assert summary.summary(level, summary.Limits())["good"] == 0.75
    assert list(report.notes([found])) == ["2 clients: 1 of 4 failed, 429"]
    assert report.failures(level.answers) == "1 of 4 calls failed: 429, later"
    assert report.failures(came) is None


def test_one_changed_text_is_found(tmp_path: Path) -> None:
    def written(*texts: str) -> Path:
        each = [{"asked": t[0], "text": t, "fault": None, "prompt": "p"} for t in texts]
        path = tmp_path / "reference.json"
        path.write_text(json.dumps({"levels": [{"answers": each[:1]}, {"answers": each}]}))
        return path

    texts = reference.read(written("a one", "b two"))
    answers = [answer(asked="a", text="a one"), answer(asked="b", text="b tWo")]
    answers += [answer(asked="c", text="c"), answer(asked="a", text="", fault="429")]
    found = reference.compared(answers, texts)
    assert (found.equal, found.unknown) == (1, 1)
    assert found.differing == ["p, turn 1, character 3: 'Wo' instead of 'wo'"]
    shorter = reference.compared([answer(asked="a", text="a o")], texts)
    assert shorter.differing == ["p, turn 1, character 3: '' instead of 'ne'"]
    with pytest.raises(ValueError, match="several texts for p"):
        reference.read(written("a one", "a two"))


@pytest.mark.parametrize("data", ["", "{}", "[]", '{"levels": [{"answers": [{}]}]}', "\xff"])
def test_a_reference_that_is_none(tmp_path: Path, data: str) -> None:
    path = tmp_path / "reference.json"
    path.write_bytes(data.encode("latin-1"))
    with pytest.raises(ValueError, match="is no reference"):
        reference.read(path)


def test_addresses() -> None:
    assert address("http://a:1/v1/") == address("http://a:1") == "http://a:1"
    assert address("https://a/proxied/v1") == "https://a/proxied"
    for wrong in ("a:1", "localhost", "ftp://a", "http://", "http://a:x", "http://[a"):
        with pytest.raises(ValueError, match="is no address"):
            address(wrong)


def swept(server: FakeServer, prompts: list[Prompt], *levels: Level, **more: Any) -> list[Level]:
    async def calling() -> None:
        async with Client(server.url, None, more.pop("seconds", 60.0)) as client:
            calls = more.pop("calls", len(prompts))
            asked = Asked("fake", calls, {"seed": 7}, {}, **more)
            await Sweep(client, prompts, asked, levels).run()

    asyncio.run(calling())
    return list(levels)


PROMPTS = [Prompt(f"p{n}", (f"text {n}",)) for n in range(3)]


def test_known_delays_are_measured() -> None:
    """Sleep ends late and never early, so there is a bound on one side."""
    reply = Reply(pieces=("ab", "c", "d", "e"), tokens=9, first_s=0.08, gap_s=0.04)
    with FakeServer(lambda body: reply) as server:
        (level,) = swept(server, PROMPTS, Level("3", clients=3), warm=1)
    assert len(server.bodies) == 4 and len(level.answers) == 3
    for one in level.answers:
        assert one.fault is None and one.text == "abcde"
        assert one.first_token_s is not None and one.first_token_s >= 0.079
        assert one.per_token_s is not None and one.per_token_s >= 0.119 / 8
        assert one.whole_s >= 0.199
    assert level.seconds >= 0.199 and level.processor_s < level.seconds


def test_clients_wait_and_arrivals_do_not() -> None:
    with FakeServer(lambda body: Reply(first_s=0.05)) as server:
        two = Level("2 clients", clients=2)
        swept(server, PROMPTS, two, calls=8)
        assert len(two.answers) == 8 and server.most == 2
        server.most = 0
        all_at_once = Level("file", due=[0.0] * 8)
        swept(server, PROMPTS, all_at_once, calls=8)
        assert server.most == 8 and len(all_at_once.answers) == 8


def test_turns_and_what_is_sent() -> None:
    """The second turn has the first one's answer; levels ask the same; salts part them."""
    talk = Prompt("t", ("hi", "and?"), chat=True, opening=(("system", "short"),))
    with FakeServer(lambda body: Reply(pieces=("ok",), tokens=1)) as server:
        one, two = swept(
            server, [talk, PROMPTS[0]], Level("1", clients=1), Level("2", clients=1), cold=True
        )
    first, second, text = server.bodies[:3]
    assert [each["content"] for each in first["messages"]] == ["short", "hi"]
    assert [each["content"] for each in second["messages"]] == ["short", "hi", "ok", "and?"]
    assert text["prompt"] == "text 0" and text["seed"] == 7 and text["model"] == "fake"
    assert text["stream"] and text["stream_options"] == {"include_usage": True}
    assert [each.asked for each in one.answers] == [each.asked for each in two.answers]
    assert len({each.asked for each in one.answers}) == 3
    assert len({body["cache_salt"] for body in server.bodies}) == 2


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (Reply(status=429), "429"),
        (Reply(status=500), "500"),
        (Reply(end="cut"), "no connection"),
        (Reply(end="error"), "error"),
        (Reply(end="hang"), "timeout"),
        (Reply(tokens=None), "no usage"),
    ],
)
def test_failures_are_counted(reply: Reply, fault: str) -> None:
    """Those of one prompt; the others are answered, and a turn behind it is not asked."""
    prompts = [*PROMPTS, Prompt("bad", ("bad", "more"), chat=True)]

    def replied(body: dict[str, Any]) -> Reply:
        return reply if "messages" in body else Reply()

    with FakeServer(replied) as server:
        (level,) = swept(server, prompts, Level("2", clients=2), seconds=1.0)
        faults = {(a.question.prompt, a.question.turn): a.fault for a in level.answers}
        assert faults.pop(("bad", 0)) == fault and faults.pop(("bad", 1)) == "not asked"
        assert set(faults.values()) == {None} and len(faults) == 3
        with pytest.raises(ValueError, match="the first calls failed: "):
            swept(server, prompts[3:], Level("1", clients=1), warm=1, seconds=1.0)
