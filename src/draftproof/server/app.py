"""The application: endpoints, what stands before them, and how errors are told."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.metadata import version

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as Call
from starlette.responses import Response
from starlette.types import ASGIApp

from draftproof.server import page, telling, tokens, writing
from draftproof.server.front import Front
from draftproof.server.guards import Guards
from draftproof.server.refusals import Refused
from draftproof.server.settings import Settings

logger = logging.getLogger("draftproof.server")

WITHOUT = "the base URL ends in /v1"
OPENAIS = "write to /v1/completions or /v1/chat/completions"
NO_VECTORS = "the model writes text, and there are no embeddings"
ELSEWHERE = {  # paths of clients that are not set up for this server, and what to change
    **dict.fromkeys(("/chat/completions", "/completions", "/responses", "/models"), WITHOUT),
    **dict.fromkeys(("/completion", "/infill", "/v1/completion", "/v1/chat/completion"), OPENAIS),
    **dict.fromkeys(("/api/generate", "/api/chat", "/api/tags", "/generate"), OPENAIS),
    **dict.fromkeys(("/v1/embeddings", "/embeddings", "/embedding", "/api/embed"), NO_VECTORS),
    "/apply-template": "/tokenize takes messages, and /detokenize shows the prompt that they make",
}


def make(front: Front) -> ASGIApp:
    """All of it, in front of one model."""
    each = writing.routes(front), telling.routes(front), tokens.routes(front), page.routes()
    return around(each, front.settings)


def around(routers: Sequence[APIRouter], settings: Settings) -> ASGIApp:
    """These endpoints, with what stands before them."""
    app = FastAPI(title="draftproof", version=version("draftproof"), redoc_url=None)
    for router in routers:
        app.include_router(router)

    @app.exception_handler(Refused)
    async def refused(call: Call, error: Refused) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def unknown(call: Call, error: HTTPException) -> Response:
        where = f"{call.method[:20]} {call.url.path[:100]}"
        hint = f": {ELSEWHERE[call.url.path]}" if call.url.path in ELSEWHERE else ""
        sentences = {404: f"there is no {where} here{hint}", 405: f"{where} is not allowed"}
        said = sentences.get(error.status_code, str(error.detail))
        return Refused(error.status_code, said).response(error.headers)

    @app.exception_handler(Exception)
    async def defect(call: Call, error: Exception) -> Response:
        logger.error("%s failed", call.url.path, exc_info=error)
        return Refused(500, "a defect of the server: its log has more").response()

    guarded: ASGIApp = Guards(app, settings)
    if not (origins := settings.cors):
        return guarded
    # Outermost, so that a page that is let in can read refusals too.
    return CORSMiddleware(guarded, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
