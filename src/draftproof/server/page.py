"""The page at `/`: one file over our own API, and the policy that nothing else runs in it."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

FILE = Path(__file__).with_name("page.html")
INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def routes() -> APIRouter:
    router = APIRouter()

    @router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> Response:
        """Chat, with who drafted each token."""
        text, headers = loaded()
        return Response(text, headers=headers, media_type="text/html")

    return router


@cache
def loaded() -> tuple[str, dict[str, str]]:
    """The page, and its headers: its own script and style run, and no other."""
    text = FILE.read_text(encoding="utf-8")
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in INLINE.findall(text):
        digest = hashlib.sha256(content.encode()).digest()
        hashes[kind].append(f"'sha256-{base64.b64encode(digest).decode()}'")
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(hashes["script"]),
        "style-src": " ".join(hashes["style"]),
        "connect-src": "'self'",
        "img-src": "data:",  # an empty icon
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return text, {
        "Content-Security-Policy": "; ".join(f"{name} {rule}" for name, rule in rules.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
