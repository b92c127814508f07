"""The application for Ray Serve: two deployments, `Front` and `Engine`. All that knows Ray Serve.

Ray starts engines, finds those that are lost, sends calls to them and counts what waits.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

try:
    import click  # of which the command `serve` is made
    import ray
    from ray import serve
    from ray.exceptions import RayActorError, RaySystemError, RayTaskError, WorkerCrashedError
    from ray.serve.config import HTTPOptions
    from ray.serve.exceptions import (
        BackPressureError,
        DeploymentUnavailableError,
        ReplicaUnavailableError,
        RequestCancelledError,
    )
except ImportError as error:
    raise ImportError(
        f"draftproof.ray needs {error.name}, which is not installed: pip install 'draftproof[ray]'"
    ) from None

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftproof.cli.launch import hush
from draftproof.cli.opening import check_hub
from draftproof.cli.opening import tokenizer as tokenizer_of
from draftproof.cli.serve import opened, settings_of
from draftproof.ray import engine, front, options
from draftproof.ray.engine import Answer
from draftproof.ray.scaling import ByQueuedTokens
from draftproof.ray.surviving import Lost
from draftproof.server.refusals import Refused
from draftproof.server.settings import Settings

ROUTER = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"
GONE = (RayActorError, WorkerCrashedError, RaySystemError, ReplicaUnavailableError)
FRONT_CALLS = 10_000  # at once, of a front: it only waits for them
HEALTH_S = 2.0  # between two looks at an engine
QUIET = {"enable_access_log": False}  # a front has a line of its own for each call
SPARE_S = 5.0  # beside the seconds that answers have when a replica is to go


class Unfit(click.ClickException, ValueError):
    """Options that cannot be followed: the command `serve` tells it without a traceback."""

    exit_code = 2


class Replicas:
    """All engines by their handle; see `surviving.Engines`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def stream(self, call: Mapping[str, Any], key: str) -> AsyncIterator[Any]:
        response = self._handle.options(method_name="stream", session_id=key, stream=True).remote(
            call
        )
        done = False
        try:
            while not done:
                try:
                    part = await anext(response)
                except StopAsyncIteration:
                    done = True
                    return
                except Exception as error:
                    done = True
                    raise _of(error) from error
                done = isinstance(part, tuple) and part[3]
                yield part
        finally:
            if not done:
                response.cancel()

    async def ask(self, call: Mapping[str, Any], key: str) -> Answer | None:
        response = self._handle.options(method_name="ask", session_id=key).remote(call)
        try:
            found: Answer | None = await response
            return found
        except asyncio.CancelledError:
            response.cancel()
            raise
        except Exception as error:
            raise _of(error) from error

    async def every(self, name: str) -> list[Any]:
        try:
            return list(await self._handle.broadcast(name).results_async())
        except Exception as error:
            raise _of(error) from error


def _of(error: Exception) -> Exception:
    """What a front makes of what Ray says."""
    if isinstance(error, BackPressureError):
        said = "too many calls wait already: try again later"
        return Refused(429, said, code="max_num_queued_reqs", retry_after=1)
    if isinstance(error, DeploymentUnavailableError):
        return Refused(503, "no engine could be started: the log of Ray Serve says why")
    if isinstance(error, RequestCancelledError) or (
        isinstance(error, GONE) and not isinstance(error, RayTaskError)
    ):
        return Lost(f"{type(error).__name__}: the replica is gone")
    return error


class EngineReplica(engine.Engine):
    """A model in a process of its own."""

    async def __init__(self, settings: Settings, given: Mapping[str, Any]) -> None:  # type: ignore[misc]
        _logged()
        chosen, _ = options.read(given)
        context = serve.get_replica_context()
        super().__init__(settings, opened(chosen), context.replica_id.unique_id)
        await self.loaded()

    def record_autoscaling_stats(self) -> dict[str, float]:
        return self.load()

    async def __del__(self) -> None:
        await self.close()


class FrontReplica:
    """The endpoints in a process of their own."""

    def __init__(self, settings: Settings, given: Mapping[str, Any], engines: Any) -> None:
        _logged()
        chosen, own = options.read(given)
        tokenizer = tokenizer_of(chosen)
        self._front = front.Front(settings, Replicas(engines), tokenizer, own.affinity_header)

    def __serve_build_asgi_app__(self) -> Any:
        return once_named(self._front.app())


def once_named(inner: ASGIApp) -> ASGIApp:
    """Without the answer's id: Serve's proxy adds it, from the same header."""

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = message["headers"]
                message["headers"] = [pair for pair in named if pair[0].lower() != b"x-request-id"]
            await send(message)

        await inner(scope, receive, told)

    return outer


def app(given: dict[str, Any]) -> Any:
    """The application: a front that answers clients, and engines that it reaches by a handle.

    given: options, see `options`. Raises `Unfit`, a `ValueError`, in one sentence.
    """
    try:
        chosen, own = options.read(given)
        settings = settings_of(chosen)
        opened(chosen)  # what can be no model is told here
        if _starts_ray():
            check_hub(chosen)
            _check_port()
    except ValueError as error:
        raise Unfit(str(error)) from error
    given = {**given, "threads": chosen.threads}
    scaled: dict[str, Any] = {"num_replicas": own.replicas or 1}
    if own.scales:
        scaled = {"autoscaling_config": _autoscaling(own)}
    limits = settings.limits
    places: int = chosen.max_batch
    engines: Any = serve.deployment(
        EngineReplica,
        name="Engine",
        max_ongoing_requests=2 * places,  # a replica has as many that wait as it writes
        max_queued_requests=max(1, limits.queued),
        logging_config=QUIET,
        ray_actor_options={"num_cpus": chosen.threads},
        request_router_config={"request_router_class": ROUTER},
        health_check_period_s=HEALTH_S,
        graceful_shutdown_timeout_s=limits.drain + SPARE_S,
        graceful_shutdown_wait_loop_s=0.2,
        **scaled,
    )
    fronts: Any = serve.deployment(
        serve.ingress()(FrontReplica),
        name="Front",
        num_replicas=own.fronts,
        max_ongoing_requests=FRONT_CALLS,
        logging_config=QUIET,
        ray_actor_options={"num_cpus": 0},  # the cores are the engines'
        graceful_shutdown_timeout_s=limits.drain + 2 * SPARE_S,
    )
    return fronts.bind(settings, given, engines.bind(settings, given))


def _starts_ray() -> bool:
    """Whether this is `serve run` on a machine where no Ray runs that was started by `ray start`:
    it is about to start one here, with its own proxy."""
    command = click.get_current_context(silent=True)
    if command is None or command.info_name != "run" or command.params.get("address"):
        return False
    if ray.is_initialized():  # it loads the application again (--reload)
        return False
    return not Path(tempfile.gettempdir(), "ray", "ray_current_cluster").exists()


def _check_port() -> None:
    """Of the proxy that Ray will start. Raises `ValueError`: it is in use."""
    http = HTTPOptions()
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((http.host, http.port))
        except OSError as error:
            raise ValueError(
                f"{http.host}:{http.port} cannot be listened on: {error.strerror}; end what does, "
                "or give another port by http_options in a YAML file"
            ) from error


def _autoscaling(own: options.Own) -> dict[str, Any]:
    return {
        "min_replicas": own.min_replicas or 1,
        "max_replicas": own.most,
        "upscale_delay_s": own.upscale_delay,
        "downscale_delay_s": own.downscale_delay,
        "look_back_period_s": max(2.0, own.upscale_delay / 2),
        "metrics_interval_s": 1.0,
        "policy": {
            "policy_function": f"{ByQueuedTokens.__module__}:{ByQueuedTokens.__name__}",
            "policy_kwargs": {"tokens": own.queued_tokens},
        },
    }


def _logged() -> None:
    """What the server logs goes where Ray Serve's own log of this replica goes, and nothing else
    does."""
    hush()
    ours = logging.getLogger("draftproof.server")
    ours.setLevel(logging.INFO)
    ours.parent = logging.getLogger("ray.serve")
