"""The endpoints of the tokenizer: `/tokenize`, `/detokenize`, `/tokenizer_info`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as Call
from starlette.responses import Response

from draftproof.intake import WORDLESS
from draftproof.server.bodies import DetokenizeBody, TokenizeBody
from draftproof.server.front import Front, beside
from draftproof.server.messages import conversation
from draftproof.server.refusals import bad
from draftproof.server.telling import told
from draftproof.server.writing import described, taken

SOURCES = ("prompt", "content", "messages")  # of a body's text


def routes(front: Front) -> APIRouter:
    """All of them, in front of one model."""
    router = APIRouter(tags=["tokenizer"])

    @router.post("/tokenize", openapi_extra=described(TokenizeBody))
    async def tokenize(call: Call) -> Response:
        body = await taken(front, call, TokenizeBody)
        tokenizer = needed(front)
        given = [name for name in SOURCES if getattr(body, name) is not None]
        if len(given) > 1:
            raise bad(f"{' and '.join(given)} are there: send one of them", given[1])
        if body.messages is not None:
            ids = await front.ids(conversation(body, tokenizer), fits=False)
        else:
            text = body.content if body.prompt is None else body.prompt
            if text is None:
                raise bad("there is nothing to encode: send prompt, or messages", "prompt")
            special = body.add_special_tokens is not False
            ids = await beside(
                len(text),
                lambda: [*map(int, tokenizer(text, add_special_tokens=special)["input_ids"])],
            )
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": front.llm.max_length}
        answer["tokens"] = ids
        if body.return_token_strs:
            answer["token_strs"] = [front.pieces.of(token)[0] for token in ids]
        return told(answer)

    @router.post("/detokenize", openapi_extra=described(DetokenizeBody))
    async def detokenize(call: Call) -> Response:
        body = await taken(front, call, DetokenizeBody)
        size = front.llm.intake.vocabulary
        if stranger := next((token for token in body.tokens if not 0 <= token < size), None):
            raise bad(f"token id {stranger} is not in the vocabulary of {size}", "tokens")
        tokenizer = needed(front)
        text = await beside(len(body.tokens), lambda: tokenizer.decode(body.tokens))
        return told({"prompt": text, "content": text})

    @router.get("/tokenizer_info")
    async def tokenizer_info() -> Response:
        tokenizer = needed(front)
        names = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
        return told(
            {"tokenizer_class": type(tokenizer).__name__, "model_max_length": front.llm.max_length}
            | {name: getattr(tokenizer, name, None) for name in names}
        )

    return router


def needed(front: Front) -> Any:
    """The tokenizer. Raises `Refused` if there is none."""
    if front.llm.tokenizer is None:
        raise bad(WORDLESS)
    return front.llm.tokenizer
