"""The endpoints that tell: models, health, load, metrics, properties."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from draftproof.sampling import SamplingParams
from draftproof.server.front import Front
from draftproof.server.refusals import unknown_model
from draftproof.server.settings import READY

MODEL = "/v1/models/{id:path}"  # names have slashes
CONTENT = "text/plain; version=0.0.4; charset=utf-8"  # of metrics


def routes(front: Front) -> APIRouter:
    """All of them, in front of one model."""
    router = APIRouter()
    settings = front.settings

    @router.get("/v1/models", tags=["OpenAI"])
    async def models() -> Response:
        return told({"object": "list", "data": [_model(front, name) for name in settings.names]})

    @router.get(MODEL, tags=["OpenAI"])
    async def model(id: str) -> Response:
        """One of them."""
        if not id:  # a slash behind the list
            return await models()
        if id not in settings.names:
            raise unknown_model(id, settings.names)
        return told(_model(front, id))

    @router.api_route("/health", methods=["GET", "HEAD"], tags=["server"], include_in_schema=False)
    @router.api_route("/ready", methods=["GET", "HEAD"], tags=["server"], include_in_schema=False)
    async def health() -> Response:
        """200 while requests are taken, else 503 with the reason."""
        good = front.state == READY
        return told({"status": "ok" if good else front.state}, 200 if good else 503)

    @router.get("/load", tags=["server"])
    async def load() -> Response:
        return told({"server_load": front.admission.load})

    @router.get("/version", tags=["server"])
    async def which() -> Response:
        return told({"version": version("draftproof")})

    @router.get("/metrics", tags=["server"])
    async def metrics() -> Response:
        return Response(front.metrics.text(), headers={"Content-Type": CONTENT})

    @router.get("/props", tags=["server"])
    async def props() -> Response:
        return told(properties(front))

    return router


def _model(front: Front, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": front.started,
        "owned_by": "draftproof",
        "root": front.settings.names[0],
        "parent": None,
        "max_model_len": front.llm.max_length,
    }


def properties(front: Front) -> dict[str, Any]:
    """llama.cpp's names, and what is ours."""
    llm, settings = front.llm, front.settings
    defaults = {"max_tokens": None, **front.defaults}
    return {
        "default_generation_settings": {
            "n_ctx": llm.max_length,
            "params": asdict(SamplingParams(**defaults)),
        },
        "total_slots": front.admission.places,
        "model_path": settings.names[0],
        "chat_template": getattr(llm.tokenizer, "chat_template", None) or "",
        "build_info": f"draftproof {version('draftproof')}",
        "draftproof": {
            "runner": llm.runner.name,
            "dtype": llm.runner.precision,
            "rule": llm.engine.rule.name,
            "drafts": llm.engine.drafts.names,
            "prefix_cache": llm.runner.prefix_cache,
            "shared_between_clients": settings.share,
            "chunk": settings.chunk,
            "limits": asdict(settings.limits),
        },
    }


def told(what: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(what), status, media_type="application/json")
