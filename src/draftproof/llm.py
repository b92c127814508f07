"""The facade: text in, text out.

Loads a model, resolves `speculate`, runs what `intake` made of prompts, returns completions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from draftproof import hub, models, places, profiles
from draftproof.asked import Message, Prompt, conversations_of, params_of
from draftproof.audio_intake import intake_of
from draftproof.bundled import located
from draftproof.chunks import Chunk, chunks
from draftproof.drafting.adopting import adopt, bind
from draftproof.drafting.base import Proposer
from draftproof.engine import Engine
from draftproof.foreign_names import Explained, explaining, explains, no_attribute, no_copy
from draftproof.kinds import check_batch, numbers_checked
from draftproof.memory import Memory
from draftproof.profiles import resolve
from draftproof.request import Completion, Request
from draftproof.runners import costs, lengths, measuring
from draftproof.runners.base import Target
from draftproof.runners.native import NativeRunner
from draftproof.runners.torch import TorchRunner
from draftproof.sampling import SamplingParams
from draftproof.scheduler import Scheduler
from draftproof.verify import Typical
from draftproof.vocabularies import end_ids, load_tokenizer

PARKED = 3  # rows that the prefix cache may keep for each that runs, as far as `kv_memory` goes


@explaining
class LLM(metaclass=Explained):
    """A language model that writes faster and writes the same.

    model: hub id, folder, "bundled" or "bundled-mender" (small models of code that come along), a
    loaded transformers model (which may lie on any device; then give `tokenizer` too, or prompt
    with token ids), or another LLM, whose weights are shared as they are. runner: "torch" runs any
    model; "native" (CPU; bfloat16, and dtype="int8") reads several tokens for the price of one, and
    speculation changes no bit there; "auto" takes it for a model by name in bfloat16 that it can
    run. speculate: "auto" drafts from the text so far wherever that pays; None, a method's name, a
    proposer, a list of these, whose trees are merged, or a profile of `draftproof tune`. rule:
    "coupled" (same seed, same tokens, whatever drafts), "rejection" (exact in law), or a `Typical`
    (lossy). max_length bounds prompt and output together.
    Any number of threads may use one LLM, and any number of LLMs one model: requests of all threads
    share steps, and nobody's output depends on who else writes. A forked child may not.
    prefix_cache: a prompt that begins like another request is read from there on; off, because what
    is kept outlives a change of the model's weights or adapters. kv_memory: bytes that keys and
    values may take, of the model and its drafts, also as "8GB" or "auto", most of what is free: a
    request waits until all that it may need is there. None: no bound. itl_target: milliseconds that
    a request that writes may wait while prompts of others are read; None: four of its passes.
    cache_weights: packed weights stay in the user's cache folder, and are mapped at the next load.

    Raises `ValueError`, in one sentence, for whatever cannot run.
    """

    runner: TorchRunner | NativeRunner
    engine: Engine
    tokenizer: Any

    @numbers_checked
    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any = None,
        speculate: Any = "auto",
        rule: str | Typical = "coupled",
        runner: str = "auto",
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        max_batch: int = 8,
        max_length: int | None = None,
        threads: int | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        prefix_cache: bool = False,
        itl_target: float | None = None,
        kv_memory: int | str | None = None,
        cache_weights: bool = False,
    ) -> None:
        check_batch(max_batch)
        if itl_target is not None and not itl_target > 0:
            raise ValueError(f"itl_target is {itl_target:g} ms: give more than 0, or None")
        self.memory = Memory(kv_memory)
        lengths.check_length(max_length)
        places.check(model, revision)
        places.check_tokenizer(tokenizer)
        proposer = resolve(speculate)
        model = hub.fetched(located(model, "target"), revision)
        options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        room: dict[str, Any] = {"max_batch": max_batch, "max_length": max_length}
        room["prefix_cache"] = prefix_cache
        room["parked"] = PARKED * max_batch if prefix_cache and kv_memory is not None else 0
        if isinstance(model, LLM):
            model.engine.check_usable()
            own = (runner, device, dtype, threads, revision, cache_weights)
            if own != ("auto", "auto", "auto", None, None, False):
                raise ValueError("weights of another LLM are shared as they are: drop the options")
            self.runner = model.runner.again(**room)
            tokenizer = tokenizer or model.tokenizer
        else:
            asked: dict[str, Any] = {"runner": runner, "device": device, "dtype": dtype}
            asked |= {"threads": threads, "cache_weights": cache_weights}
            self.runner = models.make(model, **asked, **options, **room)
        self.tokenizer = load_tokenizer(model, tokenizer, options)
        self.max_length = self.runner.max_length
        self.end_ids = end_ids(self.runner.model, self.tokenizer)
        if itl_target is not None:
            measuring.check_gap(self.runner, itl_target)
        self.intake = intake_of(self.runner, self.tokenizer, self.end_ids)
        plan = Scheduler(max_batch, costs=costs.of(self.runner), gap=itl_target, memory=self.memory)
        self.engine = Engine(
            self.runner, rule=rule, scheduler=plan, vocabulary=self.runner.vocabulary
        )
        profiles.check(speculate, self.runner)
        self._draft_with(proposer)
        self.memory.settle(self.runner.device)
        self._released = False

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def use(self, speculate: Any) -> None:
        """Draft with something else from now on; takes what `LLM(speculate=)` takes.

        Raises `ValueError` while requests are running, and changes nothing if it raises.
        """
        self.engine.check_usable()
        proposer = resolve(speculate)

        def change() -> None:
            if self.engine.scheduler.running or self.engine.scheduler.waiting:
                raise ValueError("requests are running: change the method when they have ended")
            profiles.check(speculate, self.runner)
            self._draft_with(proposer)

        self.engine.turns.alone(change)

    def _draft_with(self, proposer: Proposer | None) -> None:
        stores: list[Any] = [self.runner]

        def load(target: Target, model: Any, quantize: str | None = None) -> Target:
            made = models.beside(target, model, quantize)
            stores.append(made)
            return made

        if proposer is not None:
            bind(proposer, self.runner, load)
        self.memory.stores = stores
        former = self.engine.proposer
        self.engine.use(proposer)
        if former is not None and former is not proposer:
            adopt(former).close()

    def close(self) -> None:
        """End every request and let go of caches; the user's model stays as it was.

        Waits for a step that runs in another thread. Closing again does nothing.
        """
        if not self._released and not self.engine.turns.forked:
            self.engine.close()
            self.engine.turns.alone(self._let_go)

    def _let_go(self) -> None:
        if self.engine.proposer is not None:
            adopt(self.engine.proposer).close()
        self.runner.close()
        self._released = True

    @explains("LLM.generate")
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        decoder_prompt: Any = None,
        inputs: Any = None,
        sampling_rate: int | None = None,
    ) -> list[Completion]:
        """Completions in the order of the prompts; those of one prompt (n > 1) in a row.

        prompts: text, token ids, a list of either, or what a tokenizer returned (its padding is
        dropped); of an encoder-decoder what its encoder reads. params: one for all, or one per
        prompt. decoder_prompt: what an encoder-decoder's output goes on from, behind its start
        token: text or token ids, one for all, or a list of either, one per prompt. inputs: of a
        model that hears, instead of prompts: waves of so many samples a second, or features.
        Raises `ValueError` before anything runs if any prompt or parameter cannot run.
        """
        requests, given = [], (prompts, params, decoder_prompt, inputs, sampling_rate)
        for prompt, one, start in self.intake.asked(*given):
            requests += self.prepare(prompt, one, decoder_prompt=start)
        for _ in self.engine.run(requests):
            pass
        return [request.completion() for request in requests]

    @explains("LLM.chat")
    def chat(
        self,
        messages: str | Message | Sequence[Message] | Sequence[Sequence[Message] | str],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Any] = (),
    ) -> list[Completion]:
        """Answers to one conversation or to several, under the model's chat template.

        messages: text (a user's), a list of messages with `role` and `content`, or a list of both.
        tools: what the template shows of functions; calls come as text, in its form.
        """
        ids = [self.intake.chat_ids_with(each, tools) for each in conversations_of(messages)]
        return self.generate(ids, params)

    @explains("LLM.stream")
    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        decoder_prompt: Prompt | None = None,
    ) -> Iterator[Chunk]:
        """Chunks of one completion as they are written; closing the iterator aborts it.

        prompt: text, token ids, or the messages of a conversation, as `chat` takes them.
        """
        (asked,) = params_of(params, 1)
        if asked.n != 1:
            raise ValueError(f"stream writes one completion, not n={asked.n}: use generate")
        if asked.prompt_logprobs is not None:
            raise ValueError("a stream's chunks have no prompt_logprobs: use generate")
        (request,) = self.prepare(prompt, asked, decoder_prompt=decoder_prompt)
        return chunks(self.engine, request)

    @explains("LLM.submit")
    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, *, decoder_prompt: Any = None
    ) -> list[Request]:
        """Requests that run whenever `engine.step()` is called; for servers and tests."""
        (asked,) = params_of(params, 1)
        requests = self.prepare(prompt, asked, decoder_prompt=decoder_prompt)
        for request in requests:
            self.engine.add(request)
        return requests

    @explains("LLM.prepare")
    def prepare(
        self,
        prompt: Any,
        params: SamplingParams,
        *,
        rule: Any = None,
        salt: str = "",
        decoder_prompt: Any = None,
        intake: Any = None,
    ) -> list[Request]:
        """Requests that do not run yet, one for each completion; `engine.run` takes them.

        prompt: text, token ids, or a conversation's list of messages. rule, intake: instead of this
        LLM's. salt: nothing is reused of texts with another one.
        """
        self.engine.check_usable()
        self.engine.drafts.check(params)
        given = (prompt, params, rule or self.engine.rule, salt, decoder_prompt)
        requests: list[Request] = (intake or self.intake).requests(*given)
        self.memory.check(requests[0])
        return requests

    def __repr__(self) -> str:
        named = getattr(self.runner.model, "name_or_path", "") or type(self.runner.model).__name__
        runner, drafter = self.runner, self.engine.proposer
        return (
            f"LLM({named!r}, runner={runner.name!r}, dtype={runner.precision!r}, "
            f"speculate={drafter!r}, rule={self.engine.rule.name!r})"
        )

    def __reduce__(self) -> NoReturn:
        raise no_copy("an LLM", "dp.LLM(llm), which shares its weights")

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        """Refused: there is `generate`, and for transformers `custom_generate`."""
        raise TypeError(
            "an LLM is not called: use llm.generate(prompt) or llm.chat(messages); for "
            "model.generate of transformers there is dp.custom_generate(...)"
        )

    if not TYPE_CHECKING:  # where any attribute would then be taken for one that is there

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("LLM", name)
