"""The engine in training: the target's own texts, and what heads or a draft give when they serve.

A drafter is judged by the engine that will run it, on prompts that were not trained on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from draftproof import clock
from draftproof.heads.module import Heads
from draftproof.heads.placed import Placed
from draftproof.llm import LLM
from draftproof.proposers.ngram import NGram
from draftproof.runners import choice, encoders
from draftproof.sampling import SamplingParams
from draftproof.training.data.rows import Document
from draftproof.training.jobs.answers import Answers

GIVEN = 64  # tokens of a text that its continuation begins with
ROOM = 128  # tokens of a prompt that it is judged on, and of what is written behind it
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)  # at which the target writes what is learnt, in turn
PASSES = (1, 2, 4, 6, 8, 12, 16)  # tokens of the passes whose time is taken
NEAR = 0.03  # how far, in shares, served may be from predicted

Tell = Callable[[float], None]  # is told how much is done, 0 to 1


def engine(model: Any, tokenizer: Any, max_batch: int = 8) -> LLM:
    """The target as it will serve: natively where the native runner takes it."""
    runner = "native" if choice.suits(model) else "torch"
    return LLM(model, tokenizer=tokenizer, runner=runner, max_batch=max_batch, speculate=None)


def check_servable(model: Any, tokenizer: Any, proposer: Any = None) -> int:
    """Tokens of a prompt at most, and of what is written behind it.

    Raises `ValueError` where the engine refuses the target or what drafts: before it is trained.
    """
    with engine(model, tokenizer) as llm:
        llm.use(proposer)
        return min(ROOM, llm.max_length // 2)


def start_of(model: Any, tokenizer: Any) -> list[int] | None:
    """What the decoder of an encoder-decoder starts from; None of a decoder alone.

    Raises `ValueError` where its generation config does not tell.
    """
    if not encoders.is_one(model):
        return None
    with engine(model, tokenizer) as llm:
        return list(llm.prepare([0], SamplingParams(max_tokens=1))[0].prompt)


def prompts_of(documents: Sequence[Document], count: int, room: int) -> list[list[int]]:
    """At most `count` beginnings from the documents, evenly over them, of at most `room` tokens.

    Of a pair all that is read. Of a text of which only a part is learnt, what stands before that,
    its end where it is longer; else windows of `GIVEN`.
    """
    places: list[tuple[Document, int, int]] = []
    for document in documents:
        if document.read is not None:
            whole = Document(document.read)
            places.append((whole, 0, len(whole.ids)))
            continue
        marks = document.taught
        asked = 0 if marks is None or all(marks) else int(next(iter(document.learnt()), 0))
        if asked:
            places.append((document, max(0, asked - room), asked))
            continue
        size = min(GIVEN, room, max(1, len(document.ids) // 2))
        begins = range(0, len(document.ids) - size + 1, 4 * size)
        places += [(document, at, at + size) for at in begins]
    if not places:
        raise ValueError("the held-out text has no beginnings to continue: give more data")
    if count < len(places):
        places = [places[i * len(places) // count] for i in range(count)]
    return [list(document.ids[begin:end]) for document, begin, end in places]


def completions(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    temperatures: Sequence[float] = (0.0,),
    *,
    speculate: Any = None,
    tell: Tell = lambda share: None,
    answers: Answers | None = None,
) -> list[Any]:
    """The target's completions of the prompts, the temperatures taking turns.

    answers: of those that it knows nothing is written, and the others are kept there.
    """
    llm.use(speculate)
    known = {} if answers is None else answers.known
    requests, numbers = [], dict[int, int]()
    for number, ids in enumerate(prompts):
        if number in known:
            continue
        params = SamplingParams(
            temperature=temperatures[number % len(temperatures)],
            max_tokens=min(max_tokens, room_behind(llm, ids)),
            seed=number,
        )
        requests += llm.submit(list(ids), params)
        numbers[requests[-1].key] = number
    ended = len(prompts) - len(requests)
    for request in llm.engine.run(requests):
        ended += request.finished
        tell(ended / len(prompts))
        if answers is not None and request.finished:
            one = request.completion()
            if one.error is None:
                answers.keep(numbers[request.key], list(one.token_ids))
    results = [request.completion() for request in requests]
    for one in results:
        if one.error is not None:
            raise ValueError(f"the target cannot write: {one.error}")
    return results


def room_behind(llm: LLM, ids: Sequence[int]) -> int:
    """Tokens that may be written behind a prompt."""
    return llm.max_length - len(begin_of(llm, ids))


def begin_of(llm: LLM, ids: Sequence[int]) -> list[int]:
    """What the text behind a prompt goes on from: the prompt, or what a decoder starts from."""
    if not llm.runner.encodes:
        return list(ids)
    return list(llm.prepare(list(ids), SamplingParams(max_tokens=1))[0].prompt)


def written(llm: LLM, ids: Sequence[int], tokens: Sequence[int]) -> Document:
    """A prompt and what was written behind it, which is what is learnt."""
    begin = begin_of(llm, ids)
    taught = [False] * len(begin) + [True] * len(tokens)
    return Document([*begin, *tokens], taught, list(ids) if llm.runner.encodes else None)


def own_texts(
    llm: LLM,
    documents: Sequence[Document],
    length: int,
    limit: int | None,
    tell: Tell,
    answers: Answers,
) -> list[Document]:
    """Documents of at most `length` tokens whose answers, which are learnt, the target wrote."""
    if llm.runner.encodes:
        reads = sum(len(document.read or ()) for document in documents)
        count = len(documents) if limit is None else limit * len(documents) // max(1, reads)
        prompts = prompts_of(documents, max(1, count), 0)
    else:
        count = sum(len(document.ids) for document in documents) if limit is None else limit
        # A quarter of a row at least is its own.
        prompts = prompts_of(documents, max(1, count // length), length - max(1, length // 4))
    completions(llm, prompts, length, TEMPERATURES, speculate=NGram(), tell=tell, answers=answers)
    own = []
    for number, ids in enumerate(prompts):
        text = written(llm, ids, answers.known[number]).part(0, length)
        if any(text.taught or ()):  # else it had nothing to say
            own.append(text)
    return own


def heads_seconds(llm: LLM, heads: Heads) -> float:
    """Of a pass of the heads and of the LM head over what they make, the median of nine."""
    placed = Placed(heads, llm.runner)
    states = torch.zeros(1, heads.hidden_size, dtype=llm.runner.dtype, device=llm.runner.device)
    with torch.inference_mode():
        sides = {"heads": lambda: placed.logits(states)}
        return statistics.median(clock.interleaved(sides, rounds=9, warm=3)["heads"])


def tokens_per_step(completions: Sequence[Any]) -> float:
    """Over all completions."""
    steps = sum(one.stats.steps for one in completions)
    return sum(one.stats.tokens for one in completions) / steps if steps else 0.0


def pass_on_warnings(completions: Sequence[Any], line: Callable[[str], None]) -> None:
    """Each warning of the completions once."""
    for text in sorted({text for one in completions for text in one.warnings}):
        line(text)


def compare(predicted: float, served: float, tokens: int, line: Callable[[str], None]) -> None:
    """A line where tokens per step are further from what was predicted than chance would have it.

    Where the engine draws, steps differ by about as much as they have; three deviations are left.
    """
    steps = tokens / max(1.0, served)
    if abs(served - predicted) > max(NEAR, 3 / max(1.0, steps) ** 0.5) * predicted:
        line(
            f"warning: {predicted:.2f} tokens/step were predicted and {served:.2f} served: one of "
            "them is wrong, so report it"
        )
