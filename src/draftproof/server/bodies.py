"""The bodies of calls, as clients of OpenAI, vLLM and llama.cpp write them; types and names only.

What cannot be followed is refused by its name, unless its value asks for nothing.
"""

from __future__ import annotations

from json import dumps
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from draftproof.server.refusals import Refused, bad

Ids = list[int]


class Body(BaseModel):
    """Types are JSON's own, and no name is unknown."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] = False


class MaxNodes(Body):
    """Tokens that may be drafted in a step."""

    max_nodes: int = Field(ge=0)


class Resume(Body):
    """Where a text was cut: its tokens, of each of n a list; what its chunks told."""

    token_ids: Ids | list[Ids]
    seed: int | None = None
    fingerprint: str | None = None


class Part(Body):
    type: Literal["text"]
    text: str


class Prediction(Body):
    """What the answer is thought to be like."""

    type: Literal["content"]
    content: str | list[Part]

    @property
    def text(self) -> str:
        parts = self.content
        return parts if isinstance(parts, str) else "".join(part.text for part in parts)


class Drawn(Body):
    """How any endpoint writes; what is not given is the server's default."""

    model: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    bad_token_ids: Ids | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Ids | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    stream: bool = False
    speculative: bool | str | MaxNodes | None = None
    rule: str | None = None
    cache_salt: str | None = None


class Written(Drawn):
    """What chats and completions take."""

    max_tokens: int | None = None
    n: int | None = None
    stream_options: StreamOptions | None = None
    speculative_details: bool | Literal["trees"] = False
    metrics: bool = False
    timings: bool = False
    timings_per_token: bool = False
    return_tokens_as_token_ids: bool = False
    prompt_logprobs: int | None = None
    resume: Resume | None = None
    prediction: Prediction | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | bool | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: bool | dict[str, Any] | None = None
    grammar: str | None = None

    @property
    def length(self) -> int | None:
        """Tokens that the client asks for."""
        return self.max_tokens


class Message(BaseModel):
    """A message; what a template may know besides is passed on as it is."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)
    role: str
    content: str | list[Any] | None = None


class ChatBody(Written):
    messages: list[Message]
    max_completion_tokens: int | None = None  # the newer name of max_tokens
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def length(self) -> int | None:
        newer = self.max_completion_tokens
        return self.max_tokens if newer is None else newer


class TextBody(Written):
    prompt: str | list[str] | Ids | list[Ids] | None = None
    decoder_prompt: str | Ids | None = None  # what an encoder-decoder's texts go on from
    echo: bool = False
    logprobs: int | None = None


class TokenizeBody(Body):
    model: str | None = None
    prompt: str | None = None
    content: str | None = None  # llama.cpp's name of it
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False


class DetokenizeBody(Body):
    model: str | None = None
    tokens: Ids


ANY: Any = object()  # changes nothing that is written, whatever it says
IDLE: dict[str, tuple[Any, ...]] = {  # values that ask for nothing; null always does
    **dict.fromkeys(
        (
            "user",
            "metadata",
            "store",
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_retention",
            "request_id",
            "priority",
            "parallel_tool_calls",
            "cache_prompt",
        ),
        (ANY,),
    ),
    "best_of": (1,),
    "suffix": ("",),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (True,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "documents": ([],),
    "chat_template_kwargs": ({},),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "verbosity": ("medium",),
    "echo": (False,),
    "typical_p": (1.0,),
    "mirostat": (0,),
    "repeat_penalty": (1.0,),
    "return_token_ids": (False,),
}
ANEW = "an answer begins anew: continue a text with /v1/completions"
TOLD = "write chat_template_kwargs, as {%s}, where the chat template knows it"
EFFORT = TOLD % '"reasoning_effort": "low"'
INSTEAD = {  # what to write, or why there is nothing to write
    "best_of": "ask for several with n, and choose among them",
    "tools": "tools are for chats: use /v1/chat/completions",
    "tool_choice": "tools are for chats: use /v1/chat/completions",
    "functions": "write tools",
    "messages": "messages are for chats: use /v1/chat/completions, or here input or prompt",
    "max_tokens": "write max_output_tokens",
    "function_call": "write tool_choice",
    "guided_decoding_backend": "there is one: drop it",
    "guided_whitespace_pattern": "white space is bounded by itself: drop it",
    "suffix": "text between a prompt and a suffix cannot be written: drop it",
    "use_beam_search": "beam search is not supported: ask for several with n",
    "repeat_penalty": "write repetition_penalty",
    "n_predict": "write max_tokens",
    "bad_words": "write bad_token_ids",
    "regex": "write guided_regex",
    "ebnf": "write guided_grammar",
    "continue_final_message": ANEW,
    "add_generation_prompt": f"a prefill is not supported, {ANEW}",
    "reasoning_effort": EFFORT,
    "think": TOLD % '"enable_thinking": false',
    "verbosity": "no model is told of it: ask for short answers in a message",
    "audio": "nothing but text is written: drop it",
    "modalities": "nothing but text is written: drop it",
    "options": "write what is in it beside the other fields: temperature, top_k, max_tokens, ...",
    "keep_alive": "the model stays loaded as long as the server runs: drop it",
    "format": "write response_format",
    "num_predict": "write max_tokens",
    "input": "write messages for chats, or prompt",
}

EITHER = {  # of several kinds
    "prompt": "text, token ids, or a list of either",
    "decoder_prompt": "text or token ids",
    "stop": "text or a list of texts",
    "guided_json": "a schema, or its text",
    "json_schema": "a schema",
    "speculative_details": 'true, false or "trees"',
    "prediction": '{"type": "content", "content": text, or a list of parts of type text}',
    "tool_choice": "auto, none, required, or an object that names a function",
    "speculative": 'false, a method\'s name or {"max_nodes": n}',
}

B = TypeVar("B", bound=Body)


def read(kind: type[B], raw: bytes) -> B:
    """The body, or a `Refused` of status 400 that names what is wrong with it."""
    try:
        given = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise bad(f"the body is no JSON: {error}") from error
    return checked(kind, given)


def checked(kind: type[B], given: Any) -> B:
    """The body that JSON gave; raises `Refused` as `read` does."""
    if not isinstance(given, dict):
        raise bad("the body is no JSON object")
    fields = {name: value for name, value in given.items() if value is not None}
    for name in fields.keys() - kind.model_fields.keys():
        known = IDLE.get(name, ())
        if ANY not in known and fields[name] not in known:
            alone = f"only {dumps(known[0])} can: drop it" if known else "it is unknown: drop it"
            how = INSTEAD.get(name, alone)
            raise bad(f"{name[:80]} cannot be followed ({how})", name[:80])
        del fields[name]
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _named(error) from error


def _named(error: ValidationError) -> Refused:
    """One sentence of the first of its complaints."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = [str(part) for part in first["loc"]]
    name = path[0] if path else None
    if name in EITHER:
        return bad(f"{name} must be {EITHER[name]}", name)
    where = ".".join(path)[:120] or "the body"
    return bad(f"{where}: {first['msg'][:200]}", name)
