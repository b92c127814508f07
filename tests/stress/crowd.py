"""Eight threads that do to a few LLMs whatever users do, in every order, with faults in between.

What every request writes must be what plain decoding writes for it alone: the same tokens, text,
reason and error; the beginning of that, where it was aborted or found no room. At the end nothing
is held.
"""

from __future__ import annotations

import faulthandler
import gc
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from trouble import MUTE, Scarce, Speller, Trouble

import draftproof as dp
import tiny
from draftproof.request import Request

THREADS = 8


@dataclass(frozen=True)
class Case:
    """A prompt, its parameters, and a fault of its own; what plain decoding makes of it alone."""

    prompt: list[int] | str
    params: dp.SamplingParams
    fault: int | None  # `process` raises behind so many tokens
    wanted: tuple[Any, ...] = ()


def cases(rng: Random, count: int) -> list[Case]:
    made = []
    for number in range(count):
        params = dp.SamplingParams(
            temperature=rng.choice([0.0, 0.0, 0.7, 1.2]),
            top_k=rng.choice([0, 0, 5]),
            presence_penalty=rng.choice([0.0, 0.6]),
            repetition_penalty=rng.choice([1.0, 1.3]),
            min_tokens=rng.choice([0, 3]),
            max_tokens=rng.choice([3, 9, 24]),
            stop=rng.choice([(), (), ("e f", "ba"), ("k",)]),
            stop_token_ids=rng.choice([(), (11, 40)]),
            ignore_eos=rng.random() < 0.5,
            bad_token_ids=[MUTE] if rng.random() < 0.8 else (),
            logprobs=rng.choice([None, None, 2]),
            seed=number,
        )
        length = rng.choice([1, 2, 8, 30, 60])
        prompt: list[int] | str = [rng.randrange(3, 94) for _ in range(length)]
        prompt = "abc def" if number % 9 == 0 else prompt
        made.append(Case(prompt, params, rng.choice([0, 2, 5]) if rng.random() < 0.1 else None))
    return made


def prepared(llm: dp.LLM, case: Case) -> Request:
    (made,) = llm.prepare(case.prompt, case.params)
    if case.fault is not None:
        length = len(made.prompt) + case.fault

        def process(ids: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            if len(ids) == length:
                raise RuntimeError("a processor that fails")
            return row

        made.history.process = process
    return made


def outcome(request: Request) -> tuple[Any, ...]:
    done = request.completion()
    return done.token_ids, done.text, done.finish_reason, done.error


@dataclass
class Stress:
    """What the threads share."""

    runner: str
    seed: int
    until: float
    model: Any = None
    cases: list[Case] = field(default_factory=list)
    llms: list[dp.LLM] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        dtype = torch.bfloat16 if self.runner == "native" else torch.float64
        shape: dict[str, Any] = {"head_dim": 16, "dtype": dtype, "num_hidden_layers": 2}
        self.model, self.draft = tiny.model(**shape), tiny.model(seed=1, **shape)
        self.first = dp.LLM(
            self.model, runner=self.runner, tokenizer=Speller(), max_batch=1, speculate=None
        )
        rng = Random(self.seed)
        for case in cases(rng, 60):
            (request,) = [prepared(self.first, case)]
            list(self.first.engine.run([request]))
            fault = case.fault
            if fault is None and rng.random() < 0.3:  # behind the end, where nothing is asked for
                fault = len(request.output)
            self.cases.append(Case(case.prompt, case.params, fault, outcome(request)))
        self.llms = [self.made(rng) for _ in range(3)]
        self.memory = Scarce(Random(self.seed))

    def made(self, rng: Random) -> dp.LLM:
        """Another LLM over the same weights, with a method and a size at random."""
        methods = [
            dp.NGram(min_ngram=1),
            dp.SuffixAutomaton(min_match=1),
            dp.Lookahead(),
            dp.DraftModel(self.draft, 4, min_confidence=0.0),
            dp.EarlyExit(1, min_confidence=0.0),
            dp.Staged(self.draft, dp.NGram(min_ngram=1)),
            dp.SpecInfer([self.draft], (2, 2)),
        ]
        drafter = Trouble(rng.choice(methods), Random(rng.random()))
        return dp.LLM(
            self.first,
            speculate=drafter,
            max_batch=rng.choice([1, 2, 5, 8]),
            prefix_cache=rng.random() < 0.5,
        )

    # --- what threads do ---

    def check(self, case: Case, request: Request) -> None:
        tokens, text, reason, error = outcome(request)
        whole, _, _, cause = case.wanted
        self.counts[str(reason)] += 1
        # One that was aborted may end in what its tokenizer says of the text so far, or, in the
        # step that ran then, by itself.
        cut = reason == "abort" or (request.aborted and reason == "error")
        if cut or (reason == "error" and error != cause and "room" in str(error)):
            spelled = tokens[: tokens.index(MUTE)] if MUTE in tokens else tokens
            assert tokens == whole[: len(tokens)], (request.key, tokens, whole)
            assert text == Speller().decode(spelled), (text, tokens)
        else:
            found = tokens, text, reason, error
            assert found == case.wanted, (request.key, found, request.warnings, case)

    def generate(self, llm: dp.LLM, rng: Random) -> None:
        chosen = rng.choices(self.cases, k=rng.randint(1, 5))
        requests = [prepared(llm, case) for case in chosen]
        for _ in llm.engine.run(requests):
            if rng.random() < 0.02:
                llm.engine.abort(rng.choice(requests))
        for case, request in zip(chosen, requests, strict=True):
            self.check(case, request)

    def stream(self, llm: dp.LLM, rng: Random) -> None:
        case = rng.choice([each for each in self.cases if each.fault is None])
        drop = rng.randint(1, 6) if rng.random() < 0.3 else None
        texts, tokens, reason, error = [], list[int](), None, None
        for number, chunk in enumerate(llm.stream(case.prompt, case.params)):
            texts.append(chunk.text)
            tokens += chunk.token_ids
            reason, error = chunk.finish_reason, chunk.error
            if number == drop:
                self.counts["dropped"] += 1
                return
        if reason == "abort" or (error != case.wanted[3] and "room" in str(error)):
            assert tokens == case.wanted[0][: len(tokens)]
        else:
            found = tokens, "".join(texts), reason
            assert found == case.wanted[:3], (found, texts, case)
        self.counts["streamed"] += 1

    def submit(self, llm: dp.LLM, rng: Random) -> None:
        case = rng.choice([each for each in self.cases if each.fault is None])
        requests = llm.submit(case.prompt, case.params)
        try:
            for _ in range(rng.randint(0, 12)):
                llm.engine.step()
        finally:
            for request in requests:
                llm.engine.abort(request)
        for _ in range(1000):
            if all(request.finished for request in requests):
                break
            llm.engine.step()
        for request in requests:
            self.check(case, request)

    def close(self, rng: Random) -> None:
        at = rng.randrange(len(self.llms))
        try:
            former, self.llms[at] = self.llms[at], self.made(rng)
        except MemoryError:
            self.counts["no room"] += 1
            return
        former.close()
        self.counts["closed"] += 1

    def work(self, number: int) -> None:
        rng = Random(1000 * self.seed + number)
        try:
            while time.monotonic() < self.until and not self.failures:
                llm = rng.choice(self.llms)
                what = rng.choices([self.generate, self.stream, self.submit], weights=[5, 3, 2])[0]
                try:
                    if number == 0 and rng.random() < 0.05:
                        self.close(rng)
                    what(llm, rng)
                except ValueError as error:
                    if "this LLM is closed" not in str(error):
                        raise
        except BaseException as error:
            self.failures.append(error)

    # --- the end ---

    def idle(self) -> None:
        """Nothing is held by anybody."""
        gc.collect()
        self.memory.refuses = False
        for llm in [*self.llms, self.first]:
            llm.engine.step()
            assert not llm.engine.scheduler.running and not llm.engine.scheduler.waiting
            llm.engine.check()
            proposer = llm.engine.proposer
            if proposer is not None:
                proposer.faults = False  # type: ignore[attr-defined]
            case = next(case for case in self.cases if case.fault is None)
            request = prepared(llm, case)
            list(llm.engine.run([request]))
            assert outcome(request) == case.wanted
        assert self.model.config._attn_implementation == "sdpa" and not self.model.training
        for llm in [*self.llms, self.first]:
            llm.close()


def stress(runner: str, seconds: float, seed: int = 0) -> Counter[str]:
    """Runs the threads; raises the first of what went wrong, `TimeoutError` if they hang."""
    shared = Stress(runner, seed, 0.0)
    shared.until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=shared.work, args=(number,), daemon=True)
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=max(1.0, shared.until + 30 - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        with suppress(Exception):
            faulthandler.dump_traceback()
        raise TimeoutError("threads wait for one another")
    if shared.failures:
        raise shared.failures[0]
    shared.idle()
    return shared.counts


if __name__ == "__main__":
    import sys

    print(dict(stress(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))))
