"""`draftproof serve` in front of an encoder-decoder: a prompt is what the encoder reads."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import draftproof as dp
import spelling
from draftproof.server import running
from encoders import BART
from serving import Server, events, until_served

LONGEST = BART["max_position_embeddings"]
TEXTS = ["def quick(items):", "a b a b a b", "zebra"]
NEW = 12


@cache
def model() -> PreTrainedModel:
    kinds: dict[str, Any] = {"vocab_size": len(spelling.tokenizer()), "init_std": 1.0}
    kinds |= {"encoder_layers": 2, "decoder_layers": 2}
    with torch.random.fork_rng():
        torch.manual_seed(2)
        config = transformers.BartConfig(**{**BART, **kinds})
        return transformers.BartForConditionalGeneration(config).double().eval()


def tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(tokenizer_object=spelling.tokenizer().backend_tokenizer)
    made.chat_template = template
    return made


def opened() -> dp.LLM:
    near = dp.DraftModel(model(), 4, min_confidence=0.0)
    return dp.LLM(model(), tokenizer=tokenizer(), speculate=["ngram", near], max_batch=4)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(opened) as made:
        yield made


@cache
def alone() -> dp.LLM:
    return dp.LLM(model(), tokenizer=tokenizer(), speculate=None)


def plain(text: str, start: Any = None, **params: Any) -> dp.Completion:
    params = {"max_tokens": NEW, "temperature": 0.0, **params}
    return alone().generate(text, dp.SamplingParams(**params), decoder_prompt=start)[0]


def test_texts_are_those_of_generate(server: Server) -> None:
    asked: dict[str, Any] = {"max_tokens": NEW, "temperature": 0}
    want = [plain(text) for text in TEXTS]
    assert len({one.text for one in want}) == len(TEXTS), "the encoder makes no difference"
    answer = server.completion(TEXTS, **asked)
    assert [one["text"] for one in answer["choices"]] == [one.text for one in want]
    ids = [tokenizer()(text)["input_ids"] for text in TEXTS]
    again = server.completion(ids, **asked)
    assert [one["text"] for one in again["choices"]] == [one.text for one in want]
    # What the encoder read, and the start token of each.
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids)) + len(ids)
    assert answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0

    def one(at: int) -> str:
        told = server.post("/v1/completions", prompt=TEXTS[at % 3], stream=at % 2 > 0, **asked)
        parts = [*events(told.text)] if at % 2 else [told.json()]
        return "".join(choice["text"] for part in parts for choice in part["choices"])

    with ThreadPoolExecutor(6) as pool:
        assert [*pool.map(one, range(12))] == [want[at % 3].text for at in range(12)]
    assert server.idle()
    server.front.llm.engine.check()


def test_n_stops_and_logprobs(server: Server) -> None:
    drawn = {"max_tokens": NEW, "temperature": 1.2, "seed": 7, "n": 3}
    want = alone().generate(TEXTS[0], dp.SamplingParams(**drawn))
    answer = server.completion(TEXTS[0], **drawn)
    assert [one["text"] for one in answer["choices"]] == [one.text for one in want]
    greedy = plain(TEXTS[0], logprobs=2)
    stop = greedy.token_ids[4]
    answer = server.completion(
        TEXTS[0], max_tokens=NEW, temperature=0, stop_token_ids=[stop], logprobs=2
    )
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop" and greedy.logprobs is not None
    known = [row[token] for row, token in zip(greedy.logprobs, greedy.token_ids, strict=True)]
    told = choice["logprobs"]["token_logprobs"]
    assert told == pytest.approx(known[: len(told)]) and 0 < len(told) <= 5


def test_the_decoders_prompt(server: Server) -> None:
    asked = {"max_tokens": NEW, "temperature": 0}
    for start in ("ab", [5, 6, 7]):
        want = plain(TEXTS[0], start)
        assert want.text != plain(TEXTS[0]).text
        answer = server.completion(TEXTS[:2], decoder_prompt=start, **asked)
        found = [one["text"] for one in answer["choices"]]
        assert found == [want.text, plain(TEXTS[1], start).text]


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("completions", {"prompt": ""}, "empty"),
    ("completions", {"prompt": "a" * 97}, f"97 tokens and the encoder reads at most {LONGEST}"),
    ("completions", {"prompt": [10**6]}, "vocabulary"),
    ("completions", {"prompt": "a", "echo": True}, "echo cannot be followed"),
    ("completions", {"prompt": "a", "max_tokens": 200}, "decoder's prompt has 1 tokens and"),
    ("completions", {"prompt": "a", "decoder_prompt": "b" * 96}, "shorten decoder_prompt"),
    ("completions", {"prompt": "a", "decoder_prompt": [10**6]}, "decoder_prompt holds token id"),
    ("completions", {"prompt": "a", "decoder_prompt": 5}, "must be text or token ids"),
    ("completions", {"prompt": "a", "decoder_prompts": "b"}, "unknown"),
    ("completions", {"prompt": "a", "use_beam_search": True}, "beam search is not supported"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "chat template"),
]


@pytest.mark.parametrize(("path", "body", "said"), BAD)
def test_bad_bodies(server: Server, path: str, body: dict[str, Any], said: str) -> None:
    answer = server.post(f"/v1/{path}", **body)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert said in message and "\n" not in message
    assert server.completion("a", max_tokens=1)["choices"]


def test_a_decoder_has_no_decoder_prompt() -> None:
    with Server() as decoder:
        answer = decoder.post("/v1/completions", prompt="a", decoder_prompt="b")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "decoder_prompt" and "decoder alone" in error["message"]


def test_from_start_to_signal(tmp_path: Path) -> None:
    made = model()
    made.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with running.listen("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = ["serve", str(tmp_path), "--port", str(port), "--dtype", "float64", "--temperature"]
    command = [sys.executable, "-m", "draftproof", *words, "0", "--max-tokens", str(NEW)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = until_served(process, 300)
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": TEXTS[0]}, timeout=120)
        process.send_signal(signal.SIGTERM)
        said += process.stderr.read()
        assert process.wait(60) == 0, said
    assert answer.json()["choices"][0]["text"] == plain(TEXTS[0]).text
    assert "Traceback" not in said
