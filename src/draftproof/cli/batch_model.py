"""The model of a batch as a command's arguments name it, in this process or in another one.

Knows neither the lines nor where answers go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from draftproof import fingerprints
from draftproof.cli import opening
from draftproof.cli.chat import give_template
from draftproof.sampling.defaults import options_of

if TYPE_CHECKING:
    from draftproof.batch.calls import Calls


@contextmanager
def opened(
    given: SimpleNamespace, name: str, defaults: Mapping[str, Any]
) -> Iterator[tuple[Calls, dict[str, Any]]]:
    """The model, loaded, and who writes: what decides a text, see `Results.written_by`.

    name: what lines call it. defaults: parameters that a line does not say. Raises `ValueError`.
    """
    from draftproof.batch.calls import Calls

    tokenizer = opening.tokenizer(given)
    if given.chat_template is not None:
        give_template(tokenizer, given.model, given.chat_template)
    made = opening.load(
        given,
        encoders=True,
        tokenizer=tokenizer,
        speculate=opening.speculate(given),
        max_batch=given.max_batch,
        prefix_cache=True,
        kv_memory=given.kv_memory,
        cache_weights=given.cache_weights,
    )
    with made as llm:
        said = dict(defaults)
        if given.model_defaults:
            said = options_of(llm.runner.model.generation_config) | said
        writer = {
            "model": fingerprints.of(llm.runner, llm.tokenizer),
            "chat template": getattr(llm.tokenizer, "chat_template", None),
            "sampling": {name: said[name] for name in sorted(said)},
        }
        yield Calls(llm, name, said), writer
