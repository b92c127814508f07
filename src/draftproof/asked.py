"""What users give: prompts, conversations and parameters, in all the forms that they come in.

Knows neither a model nor a tokenizer; what has no form that is known is refused in one sentence.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from draftproof.sampling import SamplingParams

Prompt = str | Sequence[int]
Message = dict[str, Any]
READ = ("prompt", "prompt_token_ids", "type")  # what vLLM's prompts may have


def prompts_of(prompts: Any, pad: int | None = None) -> list[Any]:
    """One prompt or several, as a list of prompts. pad: the id of padding, which no prompt has."""
    if isinstance(prompts, str):
        return [prompts]
    refuse_bytes(prompts)
    if isinstance(prompts, Mapping):
        return _tokenized(prompts) if "input_ids" in prompts else prompts_of([dict(prompts)])
    listed = _listed("prompts are text, token ids or a list of either", prompts)
    listed = [text_or_ids(each) if isinstance(each, dict) else each for each in listed]
    if listed and isinstance(listed[0], Integral):
        return [listed]
    if any(map(is_conversation, [listed, *listed])):
        raise ValueError("generate takes text or token ids, not messages: use llm.chat(messages)")
    _refuse_padding(listed, pad)
    return listed


def asked_of(
    prompts: Any, params: Any, decoder_prompt: Any, pad: int | None
) -> list[tuple[Any, SamplingParams, Any]]:
    """Each prompt with its parameters, and with what the decoder starts from."""
    listed = prompts_of(prompts, pad)
    count = len(listed)
    starts = decoder_prompts_of(decoder_prompt, count)
    return list(zip(listed, params_of(params, count), starts, strict=True))


def conversations_of(messages: Any) -> list[Any]:
    """One conversation or several, as a list of conversations."""
    if isinstance(messages, str | dict):
        return [messages]
    refuse_bytes(messages)
    if not isinstance(messages, Sequence):
        raise ValueError(f"chat takes text or a list of messages, not {type(messages).__name__}")
    several = bool(messages) and not any(isinstance(message, dict) for message in messages)
    return list(messages) if several else [messages]


def messages_of(conversation: Any) -> list[Message]:
    """The messages of a conversation: each with a role and a content; text is a user's."""
    if isinstance(conversation, str):
        conversation = [{"role": "user", "content": conversation}]
    messages = [conversation] if isinstance(conversation, dict) else conversation
    refuse_bytes(messages)
    if not isinstance(messages, Sequence) or not messages:
        raise ValueError("a conversation is a list of messages, at least one, or text")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            raise ValueError(f"message {number} is a {type(message).__name__}, not a dict")
        for name in ("role", "content"):
            if not message.get(name) and not (name == "content" and _speaks_otherwise(message)):
                raise ValueError(
                    f"message {number} has no {name}: "
                    'write {"role": "user", "content": "..."} or the like'
                )
    return [{**m, "content": _joined(m["content"])} if "content" in m else m for m in messages]


def is_conversation(prompt: Any) -> bool:
    """Whether it is a list of messages, and not a prompt."""
    return isinstance(prompt, list | tuple) and bool(prompt) and isinstance(prompt[0], dict)


def integers(prompt: Any, what: str = "a prompt") -> list[int]:
    """The token ids of a prompt that is not text."""
    refuse_bytes(prompt)
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        raise ValueError(f"{what} is text or a list of integer token ids") from None


def decoder_prompts_of(given: Any, count: int) -> list[Any]:
    """What the decoder starts from for each of `count` prompts: one for all, or a list."""
    refuse_bytes(given)
    if given is None or isinstance(given, str):
        return [given] * count
    listed = _listed("decoder_prompt is text, token ids or a list of either", given)
    if all(isinstance(token, Integral) for token in listed):
        return [listed] * count
    if len(listed) != count:
        raise ValueError(
            f"{len(listed)} decoder prompts for {count} prompts: give one for all, or as many"
        )
    return listed


def refuse_bytes(prompt: Any) -> None:
    """Each byte would be taken for a token id."""
    if isinstance(prompt, bytes | bytearray | memoryview):
        raise ValueError("bytes are no prompt: decode them to text, prompt.decode()")


def params_of(params: Any, count: int) -> list[SamplingParams]:
    """Sampling parameters for each of `count` prompts."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if type(params).__name__ == "GenerationConfig":
        raise ValueError(
            "a GenerationConfig is read by dp.SamplingParams.from_model(llm): use that"
        )
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise ValueError(
            "params are SamplingParams, one for all prompts or a list with one for each"
        )
    if len(params) != count:
        raise ValueError(
            f"{len(params)} sampling parameters for {count} prompts: give one, or as many"
        )
    return list(params)


def text_or_ids(prompt: dict[str, Any]) -> Any:
    """What vLLM calls a text prompt or a tokens prompt; a message stays one."""
    for name in ("prompt_token_ids", "prompt"):
        if name in prompt and "role" not in prompt:
            for other, value in prompt.items():
                if other not in READ and value:
                    raise ValueError(
                        f"a prompt has {other}, which is not read here: give its text or token ids"
                    )
            return prompt[name]
    return prompt


def _tokenized(inputs: Mapping[str, Any]) -> list[Any]:
    """The prompts in what a transformers tokenizer gives, without padding."""
    ids, masks = _listed("input_ids are a list", inputs["input_ids"]), inputs.get("attention_mask")
    masks = None if masks is None else _listed("attention_mask is a list", masks)
    if ids and isinstance(ids[0], Integral):
        ids, masks = [ids], masks and [masks]
    if masks is None:
        return ids
    try:
        rows = [list(zip(*pair, strict=True)) for pair in zip(ids, masks, strict=True)]
    except (TypeError, ValueError):
        raise ValueError(
            "attention_mask is not of the shape of input_ids: give all that the tokenizer returned"
        ) from None
    return [[token for token, seen in row if seen] for row in rows]


def _listed(wanted: str, given: Any) -> list[Any]:
    """A list, a tuple or the like, or an array; refuses what is neither with what is wanted."""
    listed = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(listed, Sequence):
        raise ValueError(f"{wanted}, and no {type(given).__name__}")
    return list(listed)


def _refuse_padding(prompts: Sequence[Any], pad: int | None) -> None:
    """Rows of one length of which some begin or end with several padding tokens."""
    rows = [prompt for prompt in prompts if isinstance(prompt, list | tuple)]
    if pad is None or len(rows) < 2 or len({len(row) for row in rows}) > 1:
        return
    for number, row in enumerate(rows, 1):
        if [pad, pad] in (list(row[:2]), list(row[-2:])):
            raise ValueError(
                f"prompt {number} holds padding (token id {pad}), which would be read: give lists "
                "without it, or all that the tokenizer returned, llm.generate(inputs)"
            )


def _joined(content: Any) -> Any:
    """The text of a content that comes in parts, as multimodal models have it."""
    if not isinstance(content, list):
        return content
    if not all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        raise ValueError('only text can be read: a part is {"type": "text", "text": "..."}')
    return "".join(part["text"] for part in content)


def _speaks_otherwise(message: Message) -> bool:
    """An empty content is one, and a message that calls tools needs none."""
    return message.get("content") == "" or bool(message.get("tool_calls"))
