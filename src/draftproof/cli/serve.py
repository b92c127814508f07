"""`draftproof serve`: from arguments to a server that runs until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

from draftproof import LLM
from draftproof.cli import opening, sampling
from draftproof.runners import measuring

if TYPE_CHECKING:
    from draftproof.server.settings import Settings

logger = logging.getLogger("draftproof.server")
ORIGIN = re.compile(r"\*|null|[a-zA-Z][\w+.-]*://[^/\s]+")  # as browsers send it, or all of them


def run(given: SimpleNamespace) -> int:
    """The command, with its arguments by name; the exit code."""
    with opening.needing("serve", "serve"):
        from draftproof.server import running
    made = settings_of(given)
    made = replace(made, local=running.is_local(given.host))
    open = opened(given)
    with _logged(), running.listen(given.host, given.port) as bound:
        host, port = bound.getsockname()[:2]
        where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        logger.info("listening on %s; the model is being loaded", where)

        def ready(llm: LLM) -> None:
            drafts = "+".join(llm.engine.drafts.names) or "nothing"
            logger.info(
                "%s is served on %s/v1: %s, %s, %d places, %d tokens of context, drafts: %s",
                *(made.names[0], where, llm.runner.name, llm.runner.precision),
                *(given.max_batch, llm.max_length, drafts),
            )
            logger.info("%s", llm.memory)

        with asyncio.Runner(loop_factory=running.loop_factory()) as runner:
            clean = runner.run(running.serve(made, bound, open, ready=ready))
    if not clean:  # a thread is still in the model, and would be in the way when Python ends
        sys.stderr.flush()
        os._exit(130)
    return 0


def settings_of(given: SimpleNamespace) -> Settings:
    """What a server is told. Raises `ValueError`."""
    from draftproof.server import settings

    if given.chunk not in ("step", "token"):
        raise ValueError(f"chunk {given.chunk!r} is unknown: use step or token")
    if not all(key.strip() for key in given.keys or ()):  # as of a variable that is not set
        raise ValueError("an --api-key is empty, and would let everybody in: give it, or drop it")
    if not all(name.strip() for name in given.served_names or ()):
        raise ValueError("a --served-name is empty: give it, or drop it")
    for origin in given.cors or ():
        if not ORIGIN.fullmatch(origin):  # no browser would ever send it
            raise ValueError(
                f"--cors {origin!r} is no origin: write http://localhost:3000, say, without a path"
            )
    return settings.Settings(
        names=tuple(given.served_names or [given.model]),
        keys=tuple(map(settings.digest, given.keys or ())),
        cors=tuple(given.cors or ()),
        chunk=given.chunk,
        share=given.share,
        hosts=tuple(given.hosts or ()),
        defaults=sampling.of_clients(given),
        as_model=given.model_defaults,
        log=not given.quiet,
        limits=settings.Limits(
            queued=given.max_queue,
            queued_tokens=given.max_queue_tokens,
            seconds=given.timeout,
            drain=given.drain,
        ),
    )


def opened(given: SimpleNamespace) -> Callable[[], LLM]:
    """What loads the model. Raises `ValueError` for what can be no model, before it is called."""
    load = opening.for_many(
        given, prefix_cache=not given.no_prefix_cache, itl_target=given.itl_target
    )

    def open() -> LLM:
        made = load()
        if made.engine.proposer is not None:  # nobody waits for a pass yet
            measuring.prepare(made.runner)
        return made

    return open


@contextmanager
def _logged() -> Iterator[None]:
    """What the server logs goes to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
