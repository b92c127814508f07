"""The server as a door of the matrix: calls of its clients, side by side, over HTTP.

Knows OpenAI's bodies, and no verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
from matrix_axes import Cell
from matrix_judge import Answer, Refusal, asked
from matrix_models import Model

import draftproof as dp
from draftproof.server import running
from draftproof.server.settings import Settings

PATH = "/v1/completions"


def body_of(cell: Cell, given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as a client writes them."""
    body = dict(given)
    if cell.rule in ("rejection", "typical"):
        body["rule"] = cell.rule
    if (grammar := body.pop("grammar", None)) is not None:
        body["guided_regex"] = grammar.source
    if (text := body.pop("prediction", None)) is not None:
        body["prediction"] = {"type": "content", "content": text}
    if (nodes := body.pop("max_draft_nodes", None)) is not None:
        body["speculative"] = {"max_nodes": nodes}
    if (name := body.pop("speculate", None)) is not None:
        body["speculative"] = name
    if (written := body.pop("resume", None)) is not None:
        body["resume"] = {"token_ids": written, "seed": given["seed"]}
    if "logit_bias" in body:
        body["logit_bias"] = {str(token): bias for token, bias in body["logit_bias"].items()}
    return body


def of_body(
    model: Model, text: str, given: Mapping[str, Any], status: int, body: Mapping[str, Any]
) -> list[Answer]:
    """The choices of an answer. Raises `Refusal` for what the server would not do."""
    if 400 <= status < 500:
        raise Refusal(body["error"]["message"])
    if status != 200:
        raise RuntimeError(f"status {status}: {body}")
    ids = model.base.intake.encoded(text)
    before = list(given.get("resume", ()))
    counts = body.get("metrics", {}).get("speculative_decoding", {})
    answers = []
    for choice in body["choices"]:
        prompts = None
        if (rows := choice.get("prompt_logprobs")) is not None:
            prompts = [row[str(i)]["logprob"] for i, row in zip(ids[1:], rows[1:], strict=True)]
        shown = choice["text"]
        if before:  # an answer has what is new
            shown = model.base.tokenizer.decode(before) + shown
        answers.append(
            Answer(
                shown,
                None,
                choice["finish_reason"],
                choice["logprobs"] and choice["logprobs"]["token_logprobs"],
                prompts,
                counts.get("num_draft_tokens", 0),
                warnings=body.get("warnings", ()),
            )
        )
    return answers


@contextlib.contextmanager
def served(model: Model, method: str) -> Iterator[httpx.Client]:
    """A server on a free port, in a thread of this process. Raises what loading raises."""
    bound = running.listen("127.0.0.1", 0)
    port = bound.getsockname()[1]
    ready, failed = threading.Event(), list[BaseException]()
    end: list[Any] = []

    def open() -> dp.LLM:
        drafts = model.speculate(method)
        return dp.LLM(model.base, speculate=drafts, max_batch=3, prefix_cache=not model.encodes)

    def run() -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            settings = Settings(names=("m",), log=False)
            await running.serve(
                settings,
                bound,
                open,
                began=lambda front, stop: end.append((loop, stop)),
                ready=lambda llm: ready.set(),
                signals=False,
            )

        try:
            asyncio.run(main())
        except BaseException as error:
            failed.append(error)
        finally:
            bound.close()
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait(120)
        if failed:
            raise failed[0]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
    finally:
        if thread.is_alive():
            loop, stop = end[0]
            loop.call_soon_threadsafe(stop)
        thread.join(60)


def server(
    model: Model, cells: Sequence[Cell]
) -> Iterator[tuple[Cell, list[Answer] | BaseException]]:
    """`draftproof serve`: a call for every prompt of a cell, all at once."""
    try:
        with served(model, cells[0].method) as client:
            for cell in cells:
                try:
                    yield cell, called(model, cell, client)
                except Exception as error:
                    yield cell, error
    except ValueError as error:  # it does not start
        for cell in cells:
            yield cell, error


def called(model: Model, cell: Cell, client: httpx.Client) -> list[Answer]:
    given = asked(model, cell)

    def call(one: tuple[str, dict[str, Any]]) -> Any:
        body = {"prompt": one[0], "metrics": True, **body_of(cell, one[1])}
        return client.post(PATH, json=body, timeout=120)

    with ThreadPoolExecutor(len(given)) as pool:
        told = list(pool.map(call, given))
    answers = []
    for (text, params), one in zip(given, told, strict=True):
        answers += of_body(model, text, params, one.status_code, one.json())
    return answers
