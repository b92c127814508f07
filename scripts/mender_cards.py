"""Measures the bundled encoder-decoder and its draft, and writes their cards: how much of held-out
damage they mend, and how many tokens a pass writes with each method. No seconds: those are the
benchmarks'. `python scripts/mender_cards.py`, after training.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import torch
import typer

import draftproof as dp
from draftproof.bundled import FOLDERS, MENDER, folder
from draftproof.bundled.damaged import Damaged, Mended, held_out

TOKENS = 96  # most of a text that the models were trained on
ROOM = 32  # tokens that an output may have beyond its input
METHODS: dict[str, Any] = {
    "`NGram()`": lambda: dp.NGram(),
    "`SuffixAutomaton()`": lambda: dp.SuffixAutomaton(),
    '`DraftModel("bundled-mender")`': lambda: dp.DraftModel(MENDER),
    '`Staged("bundled-mender", NGram())`': lambda: dp.Staged(MENDER, dp.NGram()),
    '`[NGram(), DraftModel("bundled-mender")]`': lambda: [dp.NGram(), dp.DraftModel(MENDER)],
    "`Lookahead()`": lambda: dp.Lookahead(),
}
CARD = """---
library_name: transformers
---
# {title}

{shape}, {parameters:,} parameters, stored in bfloat16, run in float32. It writes damaged Python
without the damage: letters swapped, dropped, doubled, replaced or in the wrong case, signs and
spaces dropped or doubled, lines indented by one space too many or too few. Trained on pieces of the
standard library of {python} (PSF licence) for {steps:,} steps in {minutes} minutes:
`provenance.json`. It reads and writes up to {longest} tokens, a dozen lines or so.

```python
import draftproof as dp

llm = dp.LLM("bundled-mender"{more})
print(llm.generate("def area(width, height)\\n    retrun width * height")[0].text)
```

On {texts:,} damaged pieces of modules that were not trained on, at temperature 0, it mends
{mended:.1%} of {slips:,} slips, leaves {kept:.1%} of {places:,} untouched words and signs as they
were, and gets {whole:.1%} of the texts right as a whole.
"""
TABLE = """
What one pass of the target writes there, and how much of what was drafted was accepted:

| `speculate=` | tokens per pass | accepted |
|---|---|---|
"""


def outputs(llm: dp.LLM, pairs: list[Damaged]) -> list[dp.Completion]:
    """Greedy, in batches."""
    sizes = [len(llm.tokenizer(pair.text)["input_ids"]) + ROOM for pair in pairs]
    params = [dp.SamplingParams(max_tokens=size) for size in sizes]
    return llm.generate([pair.text for pair in pairs], params)


def mended(llm: dp.LLM, pairs: list[Damaged]) -> Mended:
    """How much of the damage the model mends."""
    found = Mended()
    for pair, one in zip(pairs, outputs(llm, pairs), strict=True):
        found.add(pair, one.text)
    return found


def passes(llm: dp.LLM, pairs: list[Damaged]) -> tuple[float, float]:
    """Tokens per pass of the target, and the share of drafted tokens that were accepted."""
    stats = [one.stats for one in outputs(llm, pairs)]
    drafted = sum(one.drafted for one in stats)
    tokens, steps = sum(one.tokens for one in stats), sum(one.steps for one in stats)
    return tokens / steps, sum(one.accepted for one in stats) / max(1, drafted)


def card(part: str, found: Mended) -> str:
    """Without the table."""
    where = folder(FOLDERS[MENDER][part])
    config = json.loads((where / "config.json").read_text())
    made = json.loads((where / "provenance.json").read_text())
    return CARD.format(
        title={"target": "bundled-mender", "draft": "A draft for bundled-mender"}[part],
        shape=f"{config['encoder_layers']} layers of encoder, {config['decoder_layers']} of "
        f"decoder (Pegasus's), width {config['d_model']}",
        longest=config["max_position_embeddings"],
        more=', speculate=dp.DraftModel("bundled-mender")' if part == "draft" else "",
        python=made["data"].split(" of ")[1].split(",")[0],
        **{name: made[name] for name in ("parameters", "steps", "minutes")},
        **{name: getattr(found, name) for name in ("texts", "slips", "places")},
        mended=found.mended_share,
        kept=found.kept_share,
        whole=found.whole_share,
    )


def main(
    count: Annotated[int, typer.Option(help="held-out texts")] = 400,
    threads: Annotated[int, typer.Option(help="of torch")] = 1,
) -> None:
    """Write the cards of both models, and print what was measured."""
    torch.set_num_threads(threads)
    plain = dp.LLM(MENDER, speculate=None)

    def fits(pair: Damaged) -> bool:
        ids = plain.tokenizer([pair.text, pair.clean])["input_ids"]
        return max(map(len, ids)) <= TOKENS

    pairs = held_out(count, seed=2, fits=fits)
    draft = dp.LLM(str(folder(FOLDERS[MENDER]["draft"])), speculate=None)
    shares = {"target": mended(plain, pairs), "draft": mended(draft, pairs)}
    rows = []
    for name, make in METHODS.items():
        rate, accepted = passes(dp.LLM(plain, speculate=make()), pairs)
        rows.append(f"| {name} | {rate:.2f} | {accepted:.1%} |")
        print(rows[-1], flush=True)
    for part, found in shares.items():
        text = card(part, found)
        text += TABLE + "\n".join(rows) + "\n" if part == "target" else ""
        (folder(FOLDERS[MENDER][part]) / "README.md").write_text(text)
        print(part, json.dumps(asdict(found)), f"{found.mended_share:.1%} {found.kept_share:.1%}")


if __name__ == "__main__":
    typer.run(main)
