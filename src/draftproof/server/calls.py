"""A body becomes what is to be written: prompts as token ids, parameters, what an answer begins
with. Nothing is let in yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftproof import fingerprints
from draftproof.request import Request
from draftproof.sampling import SamplingParams
from draftproof.server import grammars, sampled
from draftproof.server.answers import Wanted
from draftproof.server.bodies import ChatBody, TextBody, Written
from draftproof.server.front import Front
from draftproof.server.prompts import check_echo, echo, prompts_of
from draftproof.server.tools.chat import Chat
from draftproof.server.tools.reading import Reading


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call asks for.

    prompts: token ids of each. start: what an encoder-decoder's texts go on from. echoes: what
    each prompt's choices begin with; () for nothing. reading: see `Wanted`. warnings: what whoever
    reads an answer should know.
    """

    body: Written
    chat: bool
    prompts: Sequence[list[int]]
    params: SamplingParams
    start: list[int] | None
    echoes: Sequence[str] = ()
    reading: Reading | None = None
    warnings: Sequence[str] = ()

    @property
    def watched(self) -> bool:
        """Whether the tree of every step is told."""
        return self.body.speculative_details == "trees"

    def requests(
        self, front: Front, key: str, ids: Sequence[list[int]], params: SamplingParams
    ) -> list[Request]:
        """Of some of its prompts, with what the answer tells besides: warnings, and the tree of
        every step. key: of the client. Raises `Refused`.
        """
        made = front.requests(
            ids,
            params,
            asked=self.body.length,
            rule=self.body.rule,
            salt=front.salt(key, self.body.cache_salt),
            start=self.start,
        )
        for request in made:
            request.warnings += self.warnings
            request.watched = [] if self.watched else None
        return made

    def fingerprint(self, front: Front) -> str:
        """What has to agree for a text to go on elsewhere; takes as long as the prompts are."""
        rule = self.body.rule or front.llm.engine.rule.name
        of_call = fingerprints.of_call([*self.prompts, self.start or []], self.params, rule)
        return f"{front.fingerprint}-{of_call}"

    def wanted(self, front: Front, fingerprint: str = "", exact: bool = False) -> Wanted:
        """How the answer is told. fingerprint, exact: see `Wanted`."""
        return Wanted(
            body=self.body,
            chat=self.chat,
            model=front.settings.names[0],
            pieces=front.pieces,
            drafter=front.drafter,
            echoes=self.echoes,
            silent=self.body.max_tokens == 0,
            by_token=self.watched or front.settings.chunk == "token",
            fingerprint=fingerprint,
            exact=exact,
            reading=self.reading,
        )


async def of_chat(front: Front, body: ChatBody, apart: bool = False) -> Asked:
    """apart: the answer is taken apart even where all of it is content. Raises `Refused`."""
    chat = Chat(body, front.known, front.defaults, front.settings.limits)
    prompt = await front.ids(chat.messages, chat.template)
    asked = await _asked(front, body, [prompt], chat.params)
    return replace(asked, reading=chat.reading(prompt, apart), warnings=chat.warnings)


async def of_text(front: Front, body: TextBody) -> Asked:
    """Raises `Refused`."""
    check_echo(front.llm, body.echo)
    params = sampled.of_text(body, front.defaults, front.settings.limits)
    given = prompts_of(body)
    front.admission.check(len(given) * params.n)
    prompts = [await front.ids(prompt) for prompt in given]
    tokenizer = front.llm.tokenizer
    echoes = [echo(tokenizer, *each) for each in zip(given, prompts, strict=True) if body.echo]
    return await _asked(front, body, prompts, params, echoes)


async def _asked(
    front: Front,
    body: Written,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    echoes: Sequence[str] = (),
) -> Asked:
    await front.compile(params.grammar, grammars.field(body) or "tools")
    params = await front.predicted(params)
    start = await front.start(getattr(body, "decoder_prompt", None))
    return Asked(body, isinstance(body, ChatBody), prompts, params, start, echoes)
