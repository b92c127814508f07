"""The forms in which models write calls, and which of them a template has.

A template is asked to write a call, and its form is seen in what it writes. Knows no text of a
model, and no body of a client.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from draftproof.templates import rendered

ARGUMENTS, CALL_ID = "[ARGS]", "[CALL_ID]"
SPACE = r"[\x20\x0A\x0D\x09]{1,40}"  # in a document: a model in doubt would write it for ever
THINK = ("<think>", "</think>")


@dataclass(frozen=True)
class Form:
    """How calls stand in a text.

    begin, end: around a call, or around all of them; "": nothing stands there. bare: a call may
    stand at the beginning without a marker. lists: several may be one JSON list. named: a name may
    stand before its arguments, with a marker between them; writes_name: the template writes it so.
    separator: between several. key: what the arguments are called. several: whether the template
    takes more than one call in a message. short_ids: ids of calls have 9 characters.
    """

    name: str
    begin: str = ""
    end: str = ""
    bare: bool = False
    lists: bool = False
    named: bool = False
    writes_name: bool = False
    separator: str = ""
    key: str = "arguments"
    several: bool = True
    short_ids: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """What may be tokens of their own."""
        named = (ARGUMENTS, CALL_ID) if self.named else ()
        return tuple(filter(None, (self.begin, self.end, *named)))


HERMES = Form("hermes", "<tool_call>", "</tool_call>")
LLAMA = Form("llama-3", "<|python_tag|>", bare=True, separator=";", key="parameters")
MISTRAL = Form("mistral", "[TOOL_CALLS]", lists=True, named=True, short_ids=True)
# Where a template has none that is known: its model would write one call after another for ever.
PLAIN = Form("plain", bare=True, lists=True, several=False)

NAME = "look_up"
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": NAME, "arguments": {"subject": "tea"}},
}
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Looks something up.",
        "parameters": {
            "type": "object",
            "properties": {"subject": {"type": "string", "description": "What to look up."}},
            "required": ["subject"],
        },
    },
}
ASKED = {"role": "user", "content": "What is tea?"}
GIVEN = r'"(?:arguments|parameters)": *\{"subject": *"tea"\}'
OBJECT = rf'\{{[^{{}}]*(?:"name": *"{NAME}", *{GIVEN}|{GIVEN}, *"name": *"{NAME}")[^{{}}]*\}}'
SEEN = (  # tried in this order
    (HERMES, rf"<tool_call>\s*{OBJECT}\s*</tool_call>"),
    (MISTRAL, rf"\[TOOL_CALLS\]\s*(?:\[\s*)?{OBJECT}"),
    (
        replace(MISTRAL, writes_name=True),
        rf"\[TOOL_CALLS\]\s*{NAME}\s*(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?" + r'\{"subject": *"tea"\}',
    ),
    (LLAMA, rf"(?:<\|end_header_id\|>\s*|<\|python_tag\|>){OBJECT}"),
)


class Known:
    """What a model's template and tokenizer say of calls and of thinking, looked up when asked.

    tokenizer: None knows nothing.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def form(self) -> Form | None:
        """None: it has none that is known."""
        if (one := self._rendered(1)) is None:
            return None
        for form, pattern in SEEN:
            if found := re.search(pattern, one):
                key = "parameters" if '"parameters"' in found[0] else "arguments"
                return replace(form, key=key, several=self._rendered(2) is not None)
        return None

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the model is told of tools; also where the template cannot be asked."""
        begins: list[list[Any]] = [[ASKED], [{"role": "system", "content": "Help."}, ASKED]]
        told = [text for each in begins if (text := self._shown(each)) is not None]
        return not told or any(NAME in text for text in told)

    @cached_property
    def shows_calls(self) -> bool:
        """Whether the model sees earlier calls; also where the template cannot be asked."""
        called = self._rendered(1)
        return called is None or called != self._rendered(0)

    @cached_property
    def thinks(self) -> bool:
        """Whether the model may think in tags before it answers."""
        template = self._template()
        return bool(template) and (THINK[0] in template or self.token(THINK[0]) is not None)

    def token(self, marker: str) -> int | None:
        """The id of a marker that is a token of its own, whether texts show it or not."""
        vocabulary: Mapping[str, int] = getattr(self.tokenizer, "get_added_vocab", dict)()
        return vocabulary.get(marker)

    def own(self, marker: str) -> int | None:
        """The id of a marker that is a token which texts do not show, and so not of their text."""
        id = self.token(marker)
        return id if id in self._hidden else None

    def showing(self, markers: Sequence[str]) -> Any:
        """The tokenizer, with those of the markers shown in text that are not otherwise."""
        ids = {found for marker in markers if (found := self.token(marker)) is not None}
        hides = ids & self._hidden
        return Showing(self.tokenizer, self._hidden - ids) if hides else self.tokenizer

    @cached_property
    def _hidden(self) -> frozenset[int]:
        added: Mapping[int, Any] = getattr(self.tokenizer, "added_tokens_decoder", None) or {}
        own = getattr(self.tokenizer, "all_special_ids", None) or ()
        return frozenset(own) | {id for id, token in added.items() if token.special}

    def _template(self) -> str:
        template = getattr(self.tokenizer, "chat_template", None) or ""
        return template if isinstance(template, str) else json.dumps(template)

    def _rendered(self, count: int) -> str | None:
        """A conversation with so many calls; None: the template cannot take it."""
        calls = [{**CALL, "id": f"abcdefgh{number}"} for number in range(count)]
        said: dict[str, Any] = {"role": "assistant", "content": ""}
        return self._shown([ASKED, said | ({"tool_calls": calls} if calls else {})])

    def _shown(self, messages: Sequence[Any]) -> str | None:
        """A conversation with one tool; None: the template cannot take it."""
        try:
            return str(rendered(self.tokenizer, messages, tools=[TOOL], tokenize=False))
        except Exception:  # a template is a program, and there may be none
            return None


class Showing:
    """A tokenizer's `decode` that leaves out the special tokens that are hidden, no others."""

    def __init__(self, tokenizer: Any, hidden: frozenset[int]) -> None:
        self._tokenizer, self._hidden = tokenizer, hidden

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        shown = [id for id in ids if id not in self._hidden]
        return str(
            self._tokenizer.decode(
                shown, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )


def rules(known: Known, form: Form, tools: Mapping[str, Any]) -> list[str]:
    """In Lark, what a call is. tools: schemas of arguments by name."""
    made = []
    for number, (name, schema) in enumerate(tools.items()):
        inner = {"x-guidance": {"whitespace_pattern": SPACE}, **schema}
        begin = json.dumps(f'{{"name": "{name}", "{form.key}": ')
        if form.writes_name:
            made.append(f"c{number}: {json.dumps(name)} {marker(known, ARGUMENTS)} a{number}")
        else:
            made.append(f'c{number}: {begin} a{number} "}}"')
        made.append(f"a{number}: %json {json.dumps(inner)}")
    return [*made, "call: " + " | ".join(f"c{number}" for number in range(len(tools)))]


def marker(known: Known, text: str) -> str:
    """As Lark: llguidance takes no token of its own for its characters."""
    id = known.token(text)
    return json.dumps(text) if id is None else f"<[{id}]>"


def behind(known: Known, form: Form, several: bool) -> str:
    """In Lark, what stands behind the marker that begins calls; several: in one list."""
    if form.writes_name:
        return "call"
    if form.lists:
        listed = '"[" call (", " call)* "]"' if several else '"[" call "]"'
        return f'" " {listed}' if form.begin else listed
    if form.bare:  # more than one would have to be cut apart by a separator
        return 'call ("; " call)*' if several else "call"
    return rf'"\n" call "\n" {marker(known, form.end)}'


def written(known: Known, form: Form, tools: Mapping[str, Any], several: bool) -> str:
    """The grammar, in Lark, of a text of calls. tools: schemas of arguments by name."""
    several = several and form.several
    start = behind(known, form, several)
    if form.bare:
        start = start if several or not form.lists else "call"
    else:
        start = f"{marker(known, form.begin)} {start}"
    if several and (form.writes_name or not (form.lists or form.bare)):
        start = f"({start})+" if form.writes_name else rf'{start} ("\n" {start})*'
    return "\n".join([f"start: {start}", *rules(known, form, tools)])


def amid_text(known: Known, form: Form, tools: Mapping[str, Any], several: bool) -> str:
    """The grammar, in Lark, of a text that may call tools: what begins like a call has to be one.

    A marker that is a token of its own cannot be spelt out in text instead.
    """
    several, mark = several and form.several, re.escape(form.begin)
    one, token = behind(known, form, several), known.token(form.begin)
    again = several and not form.bare and (form.writes_name or not form.lists)
    made = [*rules(known, form, tools), f"TEXT: /[\\s\\S]+/ & ~/[\\s\\S]*{mark}[\\s\\S]*/"]
    thoughts = [id for tag in THINK if (id := known.own(tag)) is not None]
    made.append("text: " + " | ".join(["TEXT", *(f"<[{id}]>" for id in thoughts)]))
    free = "text*" if thoughts else "text?"
    if form.bare:  # a brace at the beginning begins one too
        made.append("SAID: /\\s*[^\\s{][\\s\\S]*/ & TEXT")
        start = f"calls | SAID? | SAID? {marker(known, form.begin)} calls"
        return "\n".join([f"start: {start}", f"calls: {one}", *made])
    if token is None:
        made.append(f"head[lazy]: /[\\s\\S]*{mark}/")
    begins = "head" if token is None else f"{free} <[{token}]>"
    start = f"({begins} {one}){'*' if again else '?'} {free}"
    return "\n".join([f"start: {start}", *made])
