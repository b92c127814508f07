"""A stream that was cut goes on at another server: what both told is what one would have told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import draftproof as dp
import serving
import tiny
from draftproof.server.progress import Progress
from serving import Server, events

HEADER = {"x-draftproof-resume": "1"}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USUAL: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "seed": 11, "stream": True}
USUAL |= {"ignore_eos": True}
USUAL |= {"stream_options": {"include_usage": True}}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (TEXT, {"prompt": "the quick"}),
    "chat": (CHAT, {"messages": [{"role": "user", "content": "hello"}], "seed": None}),
    "several": (TEXT, {"prompt": "the quick", "n": 3, "stop": ["e", "zz"], "min_tokens": 4}),
    "scored": (TEXT, {"prompt": [5, 6, 7], "logprobs": 1, "echo": True, "min_p": 0.05}),
    "chat scored": (
        CHAT,
        {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 2},
    ),
    "penalised": (TEXT, {"prompt": "abc", "frequency_penalty": 1.5, "temperature": 0}),
}


@pytest.fixture(scope="module", params=["step", "token"])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    """One to begin at, and one to go on at, which drafts otherwise."""
    with (
        Server(chunk=request.param) as first,
        Server(lambda: serving.llm(speculate="ngram"), chunk=request.param) as second,
    ):
        yield first, second


def told(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = server.client.post(path, json=body, headers=HEADER)
    assert answer.status_code == 200, answer.text
    return [*events(answer.text)]


class Merged:
    """What a client knows of each choice."""

    def __init__(self, count: int, parts: Sequence[dict[str, Any]]) -> None:
        self.texts, self.reasons = [""] * count, [None] * count
        self.ids: list[list[int]] = [[] for _ in range(count)]
        self.scores: list[list[Any]] = [[] for _ in range(count)]
        self.offsets: list[list[int]] = [[] for _ in range(count)]
        self.resume: dict[str, Any] = {}
        self.usage: Any = None
        self.add(parts)

    def add(self, parts: Sequence[dict[str, Any]]) -> None:
        for part in parts:
            self.usage = part.get("usage") or self.usage
            for choice in part["choices"]:
                self._take(choice)

    def _take(self, choice: dict[str, Any]) -> None:
        at = choice["index"]
        assert self.reasons[at] is None
        delta = choice.get("delta") or {}
        self.texts[at] += choice["text"] if "text" in choice else delta["content"]
        self.reasons[at] = choice["finish_reason"]
        scores = choice["logprobs"] or {}
        self.scores[at] += scores.get("token_logprobs") or [
            each["logprob"] for each in scores.get("content", ())
        ]
        self.offsets[at] += scores.get("text_offset", ())
        if (resume := choice.get("resume")) is not None:
            self.ids[at] += resume["token_ids"]
            assert resume["position"] == len(self.ids[at])
            self.resume = {name: resume[name] for name in ("seed", "fingerprint")}


@pytest.mark.parametrize("kind", BODIES)
def test_it_goes_on_from_every_chunk(servers: tuple[Server, Server], kind: str) -> None:
    path, more = BODIES[kind]
    body = {**USUAL, **more}
    count = body.get("n", 1)
    parts = told(servers[0], path, body)
    whole, cuts = Merged(count, parts), range(2, len(parts), 1 + len(parts) // 12)
    assert len(cuts) > 2 and all(whole.texts)
    for cut in cuts:
        seen = Merged(count, parts[:cut])
        if not seen.resume:
            continue
        resume = {"token_ids": seen.ids if count > 1 else seen.ids[0], **seen.resume}
        if body["seed"] is not None:
            del resume["seed"]  # it may be in either place
        rest = told(servers[cut % 2], path, body | {"resume": resume})
        seen.reasons = [None] * count  # a choice that had ended says so once more
        seen.add(rest)
        assert (seen.texts, seen.reasons) == (whole.texts, whole.reasons), cut
        assert (seen.ids, seen.offsets) == (whole.ids, whole.offsets), cut
        for one, other in zip(seen.scores, whole.scores, strict=True):
            assert one == pytest.approx(other)
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert seen.usage[name] == whole.usage[name]


@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("torn", [False, True])
def test_the_last_token_is_told_with_the_end(torn: bool, by_token: bool) -> None:
    """Behind it a cut stream that goes on has nothing more to tell, half a character included."""
    params = dp.SamplingParams(max_tokens=4, ignore_eos=True)
    with serving.llm() as llm:
        (request,) = llm.prepare("the quick", params)
        progress = Progress(request, llm.tokenizer, by_token, exact=True)
        for _ in llm.engine.run([request]):
            pass
        if torn:  # a moment before, in the other thread
            request.finish_reason, request.torn = None, True
        assert request.text is not None
        seen = [*progress.take(False)]
        assert seen[-1].end == 3 and [*progress.take(False)] == []
        seen += progress.take(True)
        assert seen[-1].end == 4 and "".join(each.text for each in seen) == request.text.text


def test_a_text_that_ends_before_anybody_looks_tells_its_last_token() -> None:
    """It went on at this server and was done, in the other thread, when its progress was made."""
    params = dp.SamplingParams(max_tokens=4, ignore_eos=True)
    with serving.llm() as llm:
        (whole,) = llm.prepare("the quick", params)
        for _ in llm.engine.run([whole]):
            pass
        (request,) = llm.prepare("the quick", params)
        for token in whole.output[:3]:
            request.rewrite(token)
        for _ in llm.engine.run([request]):
            pass
        progress = Progress(request, llm.tokenizer, by_token=False, exact=True)
        told = progress.before + "".join(each.text for each in progress.take(True))
        assert whole.text is not None and told == whole.text.text


def test_nobody_is_told_who_does_not_ask(servers: tuple[Server, Server]) -> None:
    body = {**USUAL, "prompt": "abc"}
    answer = servers[0].post(TEXT, **body)
    assert "resume" not in answer.text and "fingerprint" not in answer.text
    asked = servers[0].post(TEXT, **body, speculative_details=True)
    assert '"resume":{"token_ids":[' in asked.text


def test_a_whole_answer_goes_on(servers: tuple[Server, Server]) -> None:
    body = {"prompt": "the quick", "max_tokens": 24, "temperature": 1.0, "ignore_eos": True}
    answer = servers[0].client.post(TEXT, json=body, headers=HEADER).json()["choices"][0]
    assert len(answer["resume"]["token_ids"]) == answer["resume"]["position"] > 5
    resume = answer["resume"] | {"token_ids": answer["resume"]["token_ids"][:5]}
    del resume["position"]
    rest = servers[1].post(TEXT, **body, resume=resume).json()
    assert answer["text"].endswith(rest["choices"][0]["text"])
    assert len(rest["choices"][0]["text"]) < len(answer["text"])
    assert rest["usage"]["completion_tokens"] == answer["resume"]["position"]


def test_a_stream_whose_server_ends(servers: tuple[Server, Server]) -> None:
    """Cut by the connection, in the middle of whatever was on its way."""
    body = {**USUAL, "prompt": "the quick", "max_tokens": 300}
    whole = Merged(1, told(servers[0], TEXT, body))
    with Server() as ending:
        lines = []
        with ending.client.stream("POST", TEXT, json=body, headers=HEADER) as answer:
            for text in answer.iter_text():
                lines.append(text)
                if len("".join(lines)) > 4000:
                    break
    came = [part for part in "".join(lines).split("\n\n")[:-1] if part.startswith("data: {")]
    parts = [json.loads(part.removeprefix("data: ")) for part in came]
    seen = Merged(1, parts)
    assert 0 < len(seen.ids[0]) < 300
    resume = {"token_ids": seen.ids[0], **seen.resume}
    seen.add(told(servers[1], TEXT, body | {"resume": resume}))
    assert (seen.texts, seen.ids) == (whole.texts, whole.ids)


def test_refusals(servers: tuple[Server, Server]) -> None:
    body = {**USUAL, "prompt": "the quick"}
    seen = Merged(1, told(servers[0], TEXT, body))
    resume = {"token_ids": seen.ids[0][:5], **seen.resume}
    assert servers[0].post(TEXT, **body, resume=resume).status_code == 200
    drafted = {**body, "speculative": False}
    assert servers[0].post(TEXT, **drafted, resume=resume).status_code == 200
    other = "the text was begun with another prompt or other parameters"
    bare = {"token_ids": [5], "seed": 11}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"prompt": "the slow"}, other),
        ({"temperature": 0.9}, other),
        ({"stop": "a"}, other),
        ({"seed": 12}, "seed is 12, and that of resume 11"),
        ({"seed": None, "resume": {"token_ids": [5]}}, "resume needs the seed"),
        ({"prompt": ["a", "b"]}, "resume is of one prompt, and there are 2"),
        ({"rule": "rejection"}, other),
        ({"rule": "typical", "resume": bare}, "cannot go on exactly under the rule 'typical"),
        ({"resume": {"token_ids": [5, 10**6]}}, "token id 1000000 at position 1"),
        ({"resume": {"token_ids": [5] * 25}}, "the text has to end behind 24"),
        ({"resume": {"token_ids": "a"}}, "resume.token_ids"),
        ({"resume": {"token_ids": [5], "more": 1}}, "resume.more"),
        ({"resume": resume | {"fingerprint": "0" * 49}}, "begun with other weights"),
    ]
    for more, said in refused:
        answer = servers[1].post(TEXT, **{**body, "resume": resume, **more})
        assert answer.status_code == 400, (more, answer.text)
        error = answer.json()["error"]
        assert said in error["message"] and "\n" not in error["message"], error
    with Server(
        lambda: dp.LLM(tiny.relative(serving.model(), 0.01), tokenizer=serving.llm().tokenizer)
    ) as wrong:
        answer = wrong.post(TEXT, **body, resume=resume)
        assert answer.status_code == 400 and "begun with other weights" in answer.text
