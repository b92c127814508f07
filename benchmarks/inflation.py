"""How well an inflated model costs what the shape costs: `python benchmarks/inflation.py`.

Times a model, its inflation (`draftproof.bench.inflate`), and a random model of the shape in turn.
"""

from __future__ import annotations

import statistics

import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedModel

from draftproof import bundled, clock
from draftproof.bench.inflation import cost_bytes, inflate, published
from draftproof.runners import costs
from draftproof.runners.torch import TorchRunner


def pass_ms(
    models: dict[str, PreTrainedModel], context: int, rows: int, rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of passes over `rows` tokens after `context`, the models in turn."""
    passes = {
        name: costs.passes(TorchRunner(model, max_batch=1), context)(rows)
        for name, model in models.items()
    }
    seconds = clock.interleaved(passes, rounds, warm=3)
    return {name: [1e3 * each for each in took] for name, took in seconds.items()}


def main(
    model: str = "",
    like: str = "Qwen3-0.6B",
    dtype: str = "bfloat16",
    context: int = 128,
    rounds: int = 21,
) -> None:
    """Time the model (the bundled target), its inflation, and a random model of the shape."""
    console = Console()
    console.print(clock.machine(), highlight=False)
    small = AutoModelForCausalLM.from_pretrained(
        model or bundled.folder("target"), dtype=dtype
    ).eval()
    models = {"own": small, "inflated": inflate(small, like)}
    models["shape"] = AutoModelForCausalLM.from_config(published(like), dtype=small.dtype).eval()
    made = models["inflated"].config
    console.print(
        f"inflated: {made.num_hidden_layers} layers, {made.num_attention_heads} heads over "
        f"{made.num_key_value_heads}, {made.intermediate_size} units; "
        + ", ".join(f"{n} {cost_bytes(m.config, m.dtype) / 1e6:.0f} MB" for n, m in models.items())
    )
    table = Table("tokens", *(f"{name} ms" for name in models), "inflated / shape", title=like)
    for rows in (1, 4, 8, 12):
        took = pass_ms(models, context, rows, rounds)
        ratio = clock.median_ratio(took["inflated"], took["shape"])
        medians = (f"{statistics.median(each):.1f}" for each in took.values())
        table.add_row(str(rows), *medians, f"{ratio:.2f}")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
