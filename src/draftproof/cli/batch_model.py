"""The model of a batch as a command's arguments name it, in this process or in another one.

Knows neither the lines nor where answers go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from draftproof import LLM, fingerprints
from draftproof.cli import opening
from draftproof.sampling.defaults import options_of

if TYPE_CHECKING:
    from draftproof.batch.calls import Calls


@contextmanager
def opened(
    given: SimpleNamespace,
    name: str,
    defaults: Mapping[str, Any],
    load: Callable[[], LLM] | None = None,
) -> Iterator[tuple[Calls, dict[str, Any]]]:
    """The model, loaded, and who writes: what decides a text, see `Results.written_by`.

    name: what lines call it. defaults: parameters that a line does not say. load: what
    `opening.for_many` gave, where that was asked before. Raises `ValueError`.
    """
    from draftproof.batch.calls import Calls

    load = load or opening.for_many(given, prefix_cache=True)
    with load() as llm:
        said = dict(defaults)
        if given.model_defaults:
            config = llm.runner.model.generation_config
            said = options_of(config, llm.runner.encodes) | said
        writer = {
            "model": fingerprints.of(llm.runner, llm.tokenizer),
            "chat template": getattr(llm.tokenizer, "chat_template", None),
            "sampling": {name: said[name] for name in sorted(said)},
        }
        yield Calls(llm, name, said), writer
