"""Templates of the three forms of calls, a tokenizer for each, and what models write in them."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

import spelling

HEAD = (
    "{% if tools %}[tools]{% for t in tools %}{{ t.function | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}"
)
PLAIN = "[{{ m.role }}]{{ m.content }}\n"
REST = "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
TEMPLATES = {
    "hermes": HEAD + "[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}\n" + REST,
    "llama-3": HEAD + "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": '
    "{{ m.tool_calls[0].function.arguments | tojson }}}"
    "{% else %}{{ m.content }}{% endif %}<|eot_id|>\n" + REST,
    "mistral": HEAD + "{% if m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, '
    '"id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]'
    "{% else %}" + PLAIN + "{% endif %}" + REST,
    "named": HEAD + "{% if m.tool_calls %}{% for c in m.tool_calls %}[TOOL_CALLS]"
    "{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}"
    "{% else %}" + PLAIN + "{% endif %}" + REST,
    "none": HEAD + PLAIN + REST,
    "blind": "{% for m in messages %}" + PLAIN + REST,  # as SmolLM2's: of tools it shows nothing
    "thinking": HEAD + PLAIN + REST.replace("[assistant]", "[assistant]<think>\n"),
    "may think": HEAD + PLAIN + REST + "{# <think> #}",
}
SPECIAL = {  # what is a token of its own that texts do not show
    "llama-3": ["<|python_tag|>", "<|eot_id|>"],
    "mistral": ["[TOOL_CALLS]", "[ARGS]"],
    "named": ["[TOOL_CALLS]", "[ARGS]"],
}


@cache
def tokenizer(form: str) -> PreTrainedTokenizerFast:
    """Of bytes, 259 of them; behind them what the form has besides."""
    made: Any = copy.deepcopy(spelling.tokenizer())
    made.chat_template = TEMPLATES[form]
    made.add_tokens([AddedToken(text, special=True) for text in SPECIAL.get(form, ())])
    if form == "hermes":
        made.add_tokens([AddedToken(text) for text in ("<tool_call>", "</tool_call>")])
    return made  # type: ignore[no-any-return]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    about = {"name": name, "description": f"Does {name}.", "parameters": schema}
    return {"type": "function", "function": about}


TOOLS = [
    tool("weather", city={"enum": ["Rome", "Oslo"]}, days={"enum": [1, 2]}),
    tool("stop"),
]


def call(name: str, key: str = "arguments", **given: Any) -> str:
    return json.dumps({"name": name, key: given}, ensure_ascii=False)


def spoken(form: str, *calls: tuple[str, Any]) -> str:
    """What a model of that form writes to call tools."""
    key = "parameters" if form == "llama-3" else "arguments"
    if form == "named":
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(given)}" for name, given in calls)
    each = [call(name, key, **given) for name, given in calls]
    if form == "mistral":
        return f"[TOOL_CALLS] [{', '.join(each)}]"
    if form == "llama-3":
        return "; ".join(each)
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in each)
