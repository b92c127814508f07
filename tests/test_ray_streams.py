"""A stream whose engine is lost goes on at another one: the client reads what one would have told.

Without Ray: the engines are of this process, and a fake handle loses them after so many parts.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import draftproof as dp
import serving
from draftproof.ray import engine, surviving
from replicas import CHAT, PAIR, TEXT, USUAL, Lossy, ask, engines, front, run

MESSAGES = [{"role": "user", "content": "hello"}]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (TEXT, {"prompt": "the quick"}),
    "chat": (CHAT, {"messages": MESSAGES}),
    "several": (TEXT, {"prompt": "the quick", "n": 3, "stop": ["e", "zz"], "min_tokens": 4}),
    "prompts": (TEXT, {"prompt": ["the quick", "brown"], "n": 2, "echo": True}),
    "scored": (TEXT, {"prompt": [5, 6, 7], "logprobs": 1, "echo": True, "min_p": 0.05}),
    "chat scored": (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
    "penalised": (TEXT, {"prompt": "abc", "frequency_penalty": 1.5, "temperature": 0}),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surviving, "SOONEST", 0.001)
    monkeypatch.setattr(engine, "GAP", 0.0)  # as many parts as there are steps, so cuts anywhere


def told(text: str) -> dict[str, Any]:
    """What a client knows in the end, however it was cut into chunks."""
    found: dict[str, Any] = {"roles": 0, "usage": None, "ids": set(), "choices": {}}
    for part in serving.events(text):
        found["ids"].add((part["id"], part["created"]))
        if part.get("usage"):
            counts = ("prompt_tokens", "completion_tokens", "total_tokens")
            found["usage"] = [part["usage"][name] for name in counts]
        for choice in part["choices"]:
            one = found["choices"].setdefault(
                choice["index"], {"text": "", "reason": None, "tokens": [], "scores": [], "at": []}
            )
            assert one["reason"] is None, "something came behind the end"
            delta = choice.get("delta") or {}
            found["roles"] += "role" in delta
            one["text"] += choice["text"] if "text" in choice else delta["content"]
            one["reason"] = choice["finish_reason"]
            scores = choice["logprobs"] or {}
            listed = scores.get("content", ())
            one["tokens"] += scores.get("tokens") or [each["token"] for each in listed]
            one["at"] += scores.get("text_offset", ())
            values = scores.get("token_logprobs") or [each["logprob"] for each in listed]
            one["scores"] += [value and round(value, 6) for value in values]
    assert len(found.pop("ids")) == 1
    return found


async def each_cut(kind: str, **settings: Any) -> int:
    """Compares with an unbroken answer for many places of the cut; how many there were."""
    path, more = BODIES[kind]
    body = {**USUAL, **more}
    async with engines(*PAIR, **settings) as pair:
        whole = Lossy(pair[:1])
        answer = await ask(front(whole, **settings).app(), path, body)
        assert answer.status == 200, answer.text
        expected = told(answer.text)
        assert all(one["text"] and one["reason"] for one in expected["choices"].values())
        parts = whole.came
        cuts = 0
        for cut in range(0, parts, 1 + parts // 14):
            lossy = Lossy(pair, [cut, 1 + cut % 3])
            broken = await ask(front(lossy, **settings).app(), path, body)
            assert told(broken.text) == expected, cut
            cuts += len(lossy.calls) > 1
        return cuts


@pytest.mark.parametrize("kind", BODIES)
def test_it_goes_on_from_any_part(kind: str) -> None:
    assert run(each_cut(kind)) > 2


def test_it_goes_on_token_by_token() -> None:
    assert run(each_cut("several", chunk="token")) > 2


def test_the_text_is_that_of_generate() -> None:
    async def main() -> None:
        body = {**USUAL, "prompt": "the quick", "n": 2, "max_tokens": 40}
        async with engines(*PAIR) as pair:
            answer = await ask(front(Lossy(pair, [3, 3, 2, 1])).app(), TEXT, body)
            params = dp.SamplingParams(
                max_tokens=40, temperature=1.0, seed=11, ignore_eos=True, n=2
            )
        with serving.llm(speculate=None) as llm:
            texts = [each.text for each in llm.generate("the quick", params)]
        assert [one["text"] for _, one in sorted(told(answer.text)["choices"].items())] == texts

    run(main())


def test_without_a_seed_the_first_engine_s_goes_on() -> None:
    async def main() -> None:
        body = {**USUAL, "prompt": "the quick", "seed": None}
        async with engines(*PAIR) as pair:
            lossy = Lossy(pair, [4])
            answer = await ask(front(lossy).app(), TEXT, body)
            seed = lossy.calls[1]["goes_on"]["head"]["seeds"][0]
            again = await ask(front(Lossy(pair)).app(), TEXT, body | {"seed": seed})
        assert told(answer.text) == told(again.text)
        assert answer.text.count(": goes on at another engine\n\n") == 1
        assert "another engine" not in again.text

    run(main())


def test_what_the_client_resumes_goes_on_too() -> None:
    """Its front was lost, and then an engine of the next one."""

    async def main() -> None:
        body = {**USUAL, "prompt": "the quick"}
        header = {"x-draftproof-resume": "1"}
        async with engines(*PAIR) as pair:
            whole = await ask(front(Lossy(pair)).app(), TEXT, body, header)
            chunks = [part["choices"][0] for part in serving.events(whole.text) if part["choices"]]
            first = chunks[:2]
            resume = {name: first[0]["resume"][name] for name in ("seed", "fingerprint")}
            resume["token_ids"] = [t for each in first for t in each["resume"]["token_ids"]]
            del body["seed"]
            lossy = Lossy(pair, [2, 2])
            rest = await ask(front(lossy).app(), TEXT, body | {"resume": resume}, header)
        assert len(lossy.calls) == 3
        after = [part["choices"][0] for part in serving.events(rest.text) if part["choices"]]
        joined = "".join(each["text"] for each in [*first, *after])
        assert joined == "".join(each["text"] for each in chunks)
        ids = [t for each in [*first, *after] for t in each["resume"]["token_ids"]]
        assert after[-1]["resume"]["position"] == len(ids) == 24

    run(main())


@pytest.mark.parametrize("parts", [2, 3])
def test_an_engine_that_fails_is_lost(parts: int) -> None:
    """Its thread ends, and what it says of its texts then is no end of theirs."""

    class Failing(Lossy):
        async def stream(self, call: Any, key: str) -> Any:
            seen = 0
            async for part in super().stream(call, key):
                yield part
                seen += 1
                if seen == parts and len(self.calls) == 1:
                    self.engines[0].front._writer._inbox.put(_fail)

    async def main() -> None:
        body = {**USUAL, "prompt": "the quick", "max_tokens": 200}
        async with engines(*PAIR) as pair:
            expected = await ask(front(Lossy(pair[1:])).app(), TEXT, body)
            lossy = Failing(pair)
            broken = await ask(front(lossy).app(), TEXT, body)
            assert told(broken.text) == told(expected.text)
            assert len(lossy.calls) > 1
            with pytest.raises(RuntimeError, match="engine has failed"):
                pair[0].check_health()
            assert (
                await pair[0].ask({"method": "GET", "path": "/load", "headers": [], "body": b""})
                is None
            )

    run(main())


def _fail(llm: dp.LLM) -> None:
    raise RuntimeError("planted")


def last_error(text: str) -> dict[str, Any]:
    parts = list(serving.events(text))
    assert len(parts) > 1 and "choices" in parts[0]
    found: dict[str, Any] = parts[-1]["error"]
    return found


def test_another_model_is_never_gone_on_with() -> None:
    """A tokenizer, weights, a precision that differ: the stream says so, and ends."""

    async def main() -> None:
        body = {**USUAL, "prompt": "the quick"}
        async with engines(serving.llm, lambda: serving.llm(max_length=300)) as pair:
            answer = await ask(front(Lossy(pair, [4])).app(), TEXT, body)
        assert "other weights, another precision" in last_error(answer.text)["message"]

    run(main())


@pytest.mark.parametrize(("rule", "refused"), [("rejection", True), ("coupled", False)])
def test_another_law_is_never_gone_on_with(rule: str, refused: bool) -> None:
    async def main() -> None:
        body = {**USUAL, "prompt": "the quick", "rule": rule}
        async with engines(*PAIR) as pair:
            lossy = Lossy(pair, [4])
            answer = await ask(front(lossy).app(), TEXT, body)
        assert len(lossy.calls) == 2
        if refused:
            said = last_error(answer.text)["message"]
            assert said.startswith("resume cannot go on exactly under the rule 'rejection'")
        else:
            assert told(answer.text)["choices"][0]["reason"] == "length"

    run(main())


def test_where_every_engine_is_lost_the_stream_says_so() -> None:
    async def main() -> None:
        body = {**USUAL, "prompt": "the quick"}
        async with engines(*PAIR) as pair:
            never = await ask(front(Lossy(pair, [0] * 99)).app(), TEXT, body)
            broken = await ask(front(Lossy(pair, [4, *[0] * 99])).app(), TEXT, body)
        assert never.status == 503 and "retry-after" in never.headers
        assert "no engine could be reached" in never.json()["error"]["message"]
        assert "no engine could be reached" in last_error(broken.text)["message"]

    run(main())


def test_a_busy_engine_is_asked_again() -> None:
    """To go on where there is no place yet is no end of a stream; to begin there is refused."""

    class Busy(Lossy):
        async def stream(self, call: Any, key: str) -> Any:
            if len(self.calls) in busy:
                self.calls.append(call)
                yield {"refused": (429, "many wait already", None, "max_num_queued_reqs")}
                return
            async for part in super().stream(call, key):
                yield part

    async def main() -> None:
        body = {**USUAL, "prompt": "the quick"}
        async with engines(*PAIR) as pair:
            lossy = Busy(pair, [4])
            answer = await ask(front(lossy).app(), TEXT, body)
            assert len(lossy.calls) == 5 and told(answer.text)["choices"][0]["reason"] == "length"
            busy.add(0)
            answer = await ask(front(Busy(pair)).app(), TEXT, body)
        assert answer.status == 429 and answer.headers["retry-after"] == "1"

    busy = {1, 2, 3}
    run(main())


@pytest.mark.parametrize("kind", ["text", "several", "chat scored"])
def test_parts_are_gathered(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part and the last wait for nothing; between them all that was written is one."""
    path, more = BODIES[kind]

    async def main() -> None:
        async with engines(*PAIR) as pair:
            each = Lossy(pair[:1])
            expected = told((await ask(front(each).app(), path, {**USUAL, **more})).text)
            monkeypatch.setattr(engine.Engine, "gap", 60.0)
            few = Lossy(pair[:1])
            found = await asyncio.wait_for(ask(front(few).app(), path, {**USUAL, **more}), 30)
            assert told(found.text) == expected
            assert few.came < 6 < each.came

    run(main())


def test_streams_beside_others_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is alone does not; who leaves gathers no more, and ends what is written."""
    monkeypatch.setattr(engine, "GAP", 60.0)
    monkeypatch.setattr(engine, "LONGEST", 100.0)

    async def main() -> None:
        body = {**USUAL, "prompt": "the quick", "max_tokens": 200}
        async with engines(*PAIR) as pair, asyncio.timeout(30):
            (one, _), reading = pair, list[asyncio.Task[Any]]()
            for gap in (0.0, 60.0, 100.0):
                made = front(Lossy([one])).app()
                reading.append(asyncio.ensure_future(ask(made, TEXT, body)))
                while one._streams < len(reading):
                    await asyncio.sleep(0.001)
                assert one.gap == gap and not any(each.done() for each in reading)
            for each in reading:
                each.cancel()
            while one.load()["running"] or one._streams:
                await asyncio.sleep(0.005)
            assert one.gap == 0

    run(main())
