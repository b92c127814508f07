"""The front of the engine: jobs go in, news of them come back; what state the server is in.

Everything here runs on the event loop. The engine's thread is reached by `Writer` alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from draftproof import fingerprints
from draftproof.asked import is_conversation
from draftproof.llm import LLM
from draftproof.request import Request
from draftproof.sampling import Busy, Grammar, SamplingParams
from draftproof.sampling.defaults import options_of
from draftproof.server.admission import Admission
from draftproof.server.job import Job
from draftproof.server.metrics import Metrics
from draftproof.server.pieces import Pieces
from draftproof.server.prompts import begun, check_room, encoded, prepared
from draftproof.server.refusals import bad, of_value
from draftproof.server.settings import DEAD, DRAINING, LOADING, READY, Settings
from draftproof.server.tools.forms import Known
from draftproof.server.writer import Moved, Writer

LAST = 5.0  # seconds for what was aborted to end
LONG = 1 << 14  # characters, or tokens, of a prompt that is not encoded on the loop

T = TypeVar("T")


class Front:
    """One model behind a server. open: loads it, on the engine's thread. done: told of each job
    that has ended, for the access log."""

    def __init__(
        self, settings: Settings, open: Callable[[], LLM], done: Callable[[Job], None]
    ) -> None:
        self.settings = settings
        self.metrics = Metrics(settings.names[0])
        self.admission = Admission(settings.limits, self.metrics.rejected)
        self.metrics.watch(self.admission)
        self.fault: BaseException | None = None
        self.failed = asyncio.Event()  # the engine's thread has ended
        self.ready = asyncio.Event()
        self.started = int(time.time())
        self.defaults: dict[str, Any] = dict(settings.defaults)
        self._llm: LLM | None = None
        self._done = done
        self._jobs: dict[int, Job] = {}  # by the keys of their requests
        self.fingerprint = ""  # of the model, as soon as it is loaded

        def opened() -> LLM:
            llm = open()
            self.fingerprint = fingerprints.of(llm.runner, llm.tokenizer)
            return llm

        self._writer = Writer(
            opened,
            asyncio.get_running_loop(),
            loaded=self._loaded,
            moved=self._moved,
            ended=self._ended,
        )
        self._writer.start()

    @property
    def state(self) -> str:
        return self.admission.state

    @property
    def llm(self) -> LLM:
        """Raises `Refused` while it is being loaded."""
        if self._llm is None:
            self.admission.check(0)
        assert self._llm is not None
        return self._llm

    @property
    def drafter(self) -> str:
        """Who drafts, where nothing chooses among several; "" where nothing drafts."""
        proposer = self.llm.engine.proposer
        return str(getattr(proposer, "name", "a method of yours")) if proposer is not None else ""

    def salt(self, key: str, own: str | None) -> str:
        """Whose texts may be reused for a client: those of the same API key and `cache_salt`."""
        parts = "" if self.settings.share else key, own or ""
        text = repr(parts).encode("utf-8", "replace")
        return hashlib.sha256(text).hexdigest() if any(parts) else ""

    async def ids(
        self, prompt: Any, template: Mapping[str, Any] | None = None, fits: bool = True
    ) -> list[int]:
        """See `encoded`. Raises `Refused`."""
        size = len(repr((prompt, template)) if is_conversation(prompt) else prompt)
        return await beside(size, lambda: encoded(self.llm, prompt, template, fits))

    async def start(self, given: str | Sequence[int] | None) -> list[int] | None:
        """See `begun`. Raises `Refused`."""
        return await beside(len(given or ()), lambda: begun(self.llm, given))

    async def compile(self, grammar: Grammar | None, field: str | None) -> None:
        """Now and on a thread, so that nobody waits for it later. Raises `Refused`."""
        if grammar is not None:
            try:
                await asyncio.to_thread(self.llm.intake.grammars.compile, grammar)
            except Busy as error:
                raise of_value(error) from error
            except ValueError as error:
                raise bad(f"{field}: {error}", field) from error

    async def predicted(self, params: SamplingParams) -> SamplingParams:
        """With the token ids of a prediction, so that no prompt has them made. Raises `Refused`."""
        if not isinstance(given := params.prediction, str):
            return params
        try:
            ids = await beside(len(given), lambda: self.llm.intake.predicted(given))
        except ValueError as error:
            raise of_value(error) from error
        return replace(params, prediction=ids)

    def requests(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        asked: int | None,
        rule: str | None,
        salt: str,
        start: Sequence[int] | None = None,
    ) -> list[Request]:
        """The requests of a call: those of the first prompt first. Raises `Refused`.

        asked: tokens that the client itself wants of each, for which there has to be room. start:
        see `start`.
        """
        check_room(self.llm, prompts, start, asked)
        self.admission.check(len(prompts) * params.n, sum(map(len, prompts)))
        return prepared(self.llm, prompts, params, rule=rule, salt=salt, decoder_prompt=start)

    def begin(self, requests: Sequence[Request], chat: bool, about: dict[str, str]) -> Job:
        """Let them run. about: the call, for the log."""
        id = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
        job = Job(id, requests, self._writer.abort)
        job.about = about
        self._jobs |= {request.key: job for request in requests}
        self.admission.enter(requests)
        running = [request for request in requests if not request.finished]
        for request in requests:
            if request.finished:  # nothing is asked of it: no tokens
                self._news(request, True, time.monotonic())
        if running:
            self._writer.add(running)
            timer = asyncio.get_running_loop().call_later(self.settings.limits.seconds, job.cancel)
            job.then = timer.cancel
        return job

    async def drain(self, seconds: float) -> None:
        """Take no more, let what runs end, and abort it after so many seconds."""
        if self.admission.state in (LOADING, READY):
            self.admission.state = DRAINING
        await self._until_idle(seconds)
        self.abort()
        await self._until_idle(LAST)

    def abort(self) -> None:
        """End every job."""
        for job in {id(job): job for job in self._jobs.values()}.values():
            job.cancel()

    def stop(self, seconds: float) -> bool:
        """End the engine's thread; whether it did within so many seconds."""
        self._writer.stop()
        return self._writer.join(seconds)

    async def _until_idle(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._jobs and time.monotonic() < end:
            await asyncio.sleep(0.01)

    def _loaded(self, llm: LLM) -> None:
        self._llm = llm
        self.pieces, self.known = Pieces(llm.tokenizer), Known(llm.tokenizer)
        self.admission.places = llm.engine.scheduler.max_batch
        self.metrics.of(llm)
        if self.settings.as_model:
            config = llm.runner.model.generation_config
            self.defaults = options_of(config, llm.runner.encodes) | self.defaults
        if self.admission.state == LOADING:
            self.admission.state = READY
        self.ready.set()

    def _ended(self, fault: BaseException | None) -> None:
        self.fault = fault
        if self.admission.state != DRAINING or fault is not None:
            self.admission.state = DEAD
        left = {request.key: request for job in self._jobs.values() for request in job.requests}
        for request in left.values():
            request.finish("abort")
            self._news(request, True, time.monotonic())
        self.failed.set()

    def _moved(self, moved: Moved) -> None:
        now = time.monotonic()
        if moved.rows:
            self.metrics.step(moved.rows, moved.seconds, moved.foretold)
        for request, ended in moved.requests:
            self._news(request, ended, now)

    def _news(self, request: Request, ended: bool, now: float) -> None:
        job = self._jobs.get(request.key)
        if job is None:  # told already that it has ended
            return
        since, before = job.told.get(request.key, (None, request.resumed))
        count = len(request.tokens) - len(request.prompt)
        if count > before:
            self.metrics.wrote(since, now, request.stats.began, count - before)
            job.told[request.key] = now, count
        if ended:
            del self._jobs[request.key]
            self.admission.leave(request)
            self.metrics.ended(request)
        job.tell(request, ended)
        if job.done:
            job.then()
            self._done(job)


async def beside(size: int, call: Callable[[], T]) -> T:
    """What `call` returns; on a thread where it is about so much text that the loop would wait."""
    return await asyncio.to_thread(call) if size > LONG else call()
