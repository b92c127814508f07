"""The server while it runs: a socket, uvicorn, signals, and an end that lets answers finish."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from draftproof.llm import LLM
from draftproof.server import app, counted
from draftproof.server.connection import Connection
from draftproof.server.front import Front
from draftproof.server.job import Job
from draftproof.server.settings import Settings

logger = logging.getLogger("draftproof.server")
BACKLOG = 2048  # connections that wait to be accepted
PATIENCE = 5.0  # seconds for the step that runs


class Served(uvicorn.Server):
    """uvicorn's server, whose signals are ours: its own handlers end streams at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket of that address. Raises `ValueError` if it cannot be had."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        reason = error.strerror or str(error)
        elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        way = (
            "--host takes an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all it has"
            if elsewhere
            else "try another --port"
        )
        raise ValueError(f"cannot listen on {host}:{port}: {reason}; {way}") from error
    return made


def is_local(host: str) -> bool:
    """Whether only this machine can reach what listens on that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def serve(
    settings: Settings,
    bound: socket.socket,
    open: Callable[[], LLM],
    *,
    began: Callable[[Front, Callable[[], None]], None] = lambda front, end: None,
    ready: Callable[[LLM], None] = lambda llm: None,
    signals: bool = True,
) -> bool:
    """Until a signal, or until the engine fails, whose error is raised.

    began: told of the front and of what a signal does; ready: called when the model is loaded.
    Returns whether the engine's thread has ended too.
    """
    front = Front(settings, open, log if settings.log else lambda job: None)
    server = Served(
        uvicorn.Config(
            app.make(front),
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(PATIENCE),
        )
    )
    ending: list[asyncio.Task[None]] = []

    def end() -> None:
        if ending:  # a second signal: at once
            ending[0].cancel()
            front.abort()
            server.should_exit = server.force_exit = True
        else:
            logger.info("ending: answers that run have %g s", settings.limits.drain)
            ending.append(asyncio.ensure_future(_end(front, server)))

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT) if signals else ():
        loop.add_signal_handler(number, end)
    watching = asyncio.ensure_future(_watch(front, server, ready))
    began(front, end)
    try:
        await server.serve(sockets=[bound])
    finally:
        watching.cancel()
        for number in (signal.SIGTERM, signal.SIGINT) if signals else ():
            loop.remove_signal_handler(number)
        front.abort()
        clean = front.stop(PATIENCE)
        await asyncio.sleep(0)  # what the thread said last
    if front.fault is not None:
        raise front.fault
    return clean


def loop_factory() -> Any:
    """uvloop's, where it is installed."""
    return uvicorn.Config(None).get_loop_factory()  # type: ignore[arg-type]


async def _end(front: Front, server: uvicorn.Server) -> None:
    """Let answers finish, then let go of the socket."""
    await front.drain(front.settings.limits.drain)
    server.should_exit = True


async def _watch(front: Front, server: uvicorn.Server, ready: Callable[[LLM], None]) -> None:
    """Tell when the model is there; end when the engine has."""
    tasks = [asyncio.ensure_future(event.wait()) for event in (front.ready, front.failed)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if front.ready.is_set():
            ready(front.llm)
        await front.failed.wait()
        server.should_exit = True
    finally:
        for task in tasks:
            task.cancel()


def log(job: Job) -> None:
    """One line for a call, when its texts have ended."""
    prompts = job.prompts
    read = sum(each.read for each in prompts)
    cached = sum(each.stats.cached for each in prompts)
    lines = [counted.line(request.stats) for request in job.requests]
    first = min((each["first_ms"] for each in lines if each["first_ms"] is not None), default=0.0)
    wrote = sum(each["tokens"] for each in lines)
    sources = "+".join(dict.fromkeys(name for each in lines for name in each["sources"]))
    logger.info(
        "%s %s %s prompt=%d cached=%d tokens=%d first=%.0f ms %.1f tokens/s acceptance=%.2f "
        "drafts=%s",
        job.about.get("id", "-"),
        job.about.get("path", "-"),
        "/".join(dict.fromkeys(str(each.finish_reason) for each in job.requests)),
        read,
        cached,
        wrote,
        first,
        sum(each["per_second"] for each in lines),
        sum(each["acceptance"] for each in lines) / len(lines),
        sources or "none",
    )
