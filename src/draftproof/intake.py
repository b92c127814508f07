"""Prompts and parameters become requests; refusals in one sentence, before anything runs.

Knows a model by its tokenizer and a few numbers: nothing is loaded, and nothing runs.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draftproof.asked import asked_of, integers, is_conversation, messages_of, text_or_ids
from draftproof.grammars.store import Grammars
from draftproof.request import Request
from draftproof.resuming import go_on
from draftproof.runners.base import EncoderInput
from draftproof.sampling import SamplingParams
from draftproof.templates import chat_ids
from draftproof.text import TextStream
from draftproof.verify import Typical
from draftproof.writing import Rule

WORDLESS = (
    "this model came without a tokenizer: give tokenizer=, put its tokenizer.json beside the "
    "weights, or prompt with token ids"
)

KEYS = itertools.count()  # of requests, whoever makes them; its next() is atomic


class Intake:
    """Makes the requests for one model.

    tokenizer: None takes token ids only. vocabulary: ids that the model has rows for. max_length:
    of prompt and output. end_ids: tokens that end an output. Any number of threads may use it.
    """

    def __init__(
        self, tokenizer: Any, vocabulary: int, max_length: int, end_ids: Sequence[int] = ()
    ) -> None:
        self.tokenizer, self.vocabulary = tokenizer, vocabulary
        self.readable = vocabulary  # ids that a prompt may hold
        self.max_length, self.end_ids = max_length, end_ids
        self.grammars = Grammars(tokenizer, vocabulary, end_ids)

    def asked(
        self, prompts: Any, params: Any, decoder_prompt: Any, inputs: Any, rate: int | None
    ) -> list[tuple[Any, SamplingParams, Any]]:
        """Each prompt with its parameters, and with what the decoder starts from.

        inputs, rate: audio, and its samples a second.
        """
        if inputs is not None or rate is not None:
            raise ValueError("inputs and sampling_rate are for models that hear: give prompts")
        if prompts is None:
            raise ValueError("there are no prompts: give text or token ids")
        pad = getattr(self.tokenizer, "pad_token_id", None)
        return asked_of(prompts, params, decoder_prompt, pad)

    def requests(
        self,
        prompt: Any,
        params: SamplingParams,
        rule: str | Typical | Rule = "coupled",
        salt: str = "",
        decoder_prompt: Any = None,
    ) -> list[Request]:
        """One for each completion of a prompt: text, token ids, or a list of messages."""
        return self.of_ids(self.begins(self.ids(prompt), decoder_prompt), params, rule, salt)

    def begins(self, ids: list[int], decoder_prompt: Any) -> list[int]:
        """What an output goes on from, of a prompt's ids."""
        if decoder_prompt is not None:
            raise ValueError(
                "decoder_prompt is for encoder-decoders, and this model is a decoder alone: put it "
                "behind the prompt"
            )
        return ids

    def of_ids(
        self,
        ids: list[int],
        params: SamplingParams,
        rule: str | Typical | Rule,
        salt: str,
        encoder_input: EncoderInput | None = None,
    ) -> list[Request]:
        """One for each completion of what a decoder starts from."""
        if params.stop and self.tokenizer is None:
            raise ValueError("stop strings need a tokenizer: pass tokenizer= or use stop_token_ids")
        self.check("logit_bias", params.logit_bias or (), self.vocabulary)
        self.check("bad_token_ids", params.bad_token_ids, self.vocabulary)
        self.check("stop_token_ids", params.stop_token_ids, self.vocabulary)
        predicted = self.predicted(params.prediction)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        keys = [next(KEYS) for _ in range(params.n)]
        requests = [
            Request(
                key,
                ids,
                params,
                seed=seed,
                rule=rule,
                end_ids=self.end_ids,
                max_length=self.max_length,
                text=self.tokenizer and TextStream(self.tokenizer, ids, params.stop or ()),
                index=index,
                siblings=keys if len(keys) > 1 else (),
                salt=salt,
                encoder_input=encoder_input,
            )
            for index, key in enumerate(keys)
        ]
        for request in requests:
            request.predicted = () if request.finished else predicted
        if params.grammar is not None:
            self.grammars.guide(requests, params.grammar)
        if params.resume is not None:
            go_on(requests, self.vocabulary)
        return requests

    def predicted(self, given: str | Sequence[int] | None) -> Sequence[int]:
        """Token ids of a prediction, which is no part of the context and might still be written."""
        if isinstance(given, str):
            if self.tokenizer is None:
                raise ValueError("prediction needs a tokenizer: pass tokenizer=, or token ids")
            given = self.tokens("prediction", given, add_special_tokens=False)
        given = given or ()
        self.check("prediction", given, self.vocabulary)
        if len(given) > self.max_length:
            raise ValueError(
                f"prediction has {len(given)} tokens, and the context ends at {self.max_length}: "
                "predict no more than can be written"
            )
        return given

    def ids(self, prompt: Any) -> list[int]:
        """Token ids of a prompt, which the model has and which leave room for one more."""
        ids = self.encoded(prompt)
        if not ids:
            raise ValueError("the prompt is empty: give at least one token")
        if len(ids) > self.max_length - 1:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and at most {self.max_length - 1} fit "
                f"(max_length {self.max_length}): shorten it"
            )
        return ids

    def encoded(self, prompt: Any) -> list[int]:
        """Token ids of a prompt, however many there are, all of which the model has."""
        if isinstance(prompt, dict):
            prompt = text_or_ids(prompt)
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError(WORDLESS)
            # A begin token alone would do, but an empty text is a mistake far more often.
            ids = self.tokens("the prompt", prompt) if prompt else []
        elif is_conversation(prompt):
            ids = chat_ids(self.tokenizer, messages_of(prompt))
        else:
            ids = integers(prompt)
        # A tokenizer may have more than the model has rows.
        self.check("the prompt", ids, self.readable)
        return ids

    def tokens(self, what: str, text: str, **options: Any) -> list[int]:
        """Token ids of a text. Raises `ValueError` for what is none: half of a surrogate pair."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{what} holds half a character, which no text has: mend it") from None
        return [int(token) for token in self.tokenizer(text, **options)["input_ids"]]

    def chat_ids(self, conversation: Any, template: Mapping[str, Any] | None = None) -> list[int]:
        """Token ids of a conversation: messages, or text, which is a user's message.

        template: what it is told besides, as tools.
        """
        return chat_ids(self.tokenizer, messages_of(conversation), template)

    def chat_ids_with(self, conversation: Any, tools: Any) -> list[int]:
        """The same with functions as OpenAI's clients offer them, which the template has to show.

        Raises `ValueError`.
        """
        plain = self.chat_ids(conversation)
        if tools is None or (isinstance(tools, Sequence) and not tools):
            return plain
        if not isinstance(tools, list | tuple) or not all(isinstance(t, dict) for t in tools):
            raise ValueError(
                'tools must be a list of {"type": "function", "function": {"name": ...}}'
            )
        if (shown := self.chat_ids(conversation, {"tools": [*tools]})) == plain:
            raise ValueError(
                "the model's chat template shows no tools: describe them in a message, and bind "
                "the answer with dp.SamplingParams(grammar=...)"
            )
        return shown

    def check(self, what: str, ids: Iterable[int], vocabulary: int) -> None:
        """Raises `ValueError` for an id that the model has no row for."""
        for token in ids:
            if not 0 <= token < vocabulary:
                raise ValueError(
                    f"{what} holds token id {token}, and the vocabulary ends at {vocabulary - 1}"
                )
