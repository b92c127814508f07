"""The drop-in for transformers as a door of the matrix: `generate(custom_generate=...)`.

Its options are transformers'. Greedy texts are compared with transformers' own loop, where that
follows the same options; sampled ones with the drop-in that drafts nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from matrix_axes import Cell
from matrix_judge import Answer, Refusal, asked
from matrix_models import Model

import draftproof as dp

DRAFTED, PLAIN, THEIRS = "drafted", "plain", "transformers"  # by which loop
RULES = {"greedy": "coupled"}
NAMES = {"repetition_penalty", "top_k", "top_p", "min_p"}  # of both


def drop_in(
    model: Model, cells: Sequence[Cell]
) -> Iterator[tuple[Cell, list[Answer] | BaseException]]:
    for cell in cells:
        try:
            yield cell, rows(model, cell, model.speculate(cell.method))
        except Exception as error:
            theirs = "`model_kwargs` are not used by the model" in str(
                error
            )  # before ours is called
            yield cell, Refusal(str(error)) if theirs else error


def plain(model: Model, cell: Cell) -> list[Answer]:
    """What is to come: of transformers itself where it is asked for nothing else than it has."""
    theirs = cell.rule == "greedy" and cell.extra != "grammar"
    return rows(model, cell, None, by=THEIRS if theirs else PLAIN)


def rows(model: Model, cell: Cell, speculate: Any, by: str = DRAFTED) -> list[Answer]:
    """Every row that one call writes."""
    given = asked(model, cell)
    params = given[0][1]
    inputs = model.tokenizer([text for text, _ in given], padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    options = options_of(model, cell, params)
    fast = None
    if by == THEIRS:
        if "stop_strings" in options:
            options["tokenizer"] = model.tokenizer
    else:
        bound = {"grammar": params.get("grammar")}
        bound["prediction"] = params.get("prediction") if by == DRAFTED else None
        rule = RULES.get(cell.rule, cell.rule)
        places = 3 if cell.batch == "ragged" else 8
        fast = dp.custom_generate(
            speculate, rule=rule, seed=params["seed"], max_batch=places, **bound
        )
        options |= {"custom_generate": fast, "tokenizer": model.tokenizer}
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        out = model.loaded.generate(**inputs, **options)
    width = 1 if model.encodes else inputs["input_ids"].shape[1]
    if "decoder_input_ids" in options:
        width = options["decoder_input_ids"].shape[1]
    sequences = getattr(out, "sequences", out)
    answers = []
    ours = [str(each.message) for each in said if "drafting stopped" in str(each.message)]
    for at, row in enumerate(sequences.tolist()):
        drafted = fast.stats[at].drafted if fast is not None else 0
        ids = trimmed(row[width:], model)
        chosen = None
        if "output_scores" in options:
            scores = [out.scores[i][at].log_softmax(-1) for i in range(len(ids))]
            chosen = [float(s[token]) for s, token in zip(scores, ids, strict=True)]
        text = model.tokenizer.decode(ids, skip_special_tokens=True)
        answers.append(Answer(text, ids, chosen=chosen, drafted=drafted, warnings=ours))
    return answers


def trimmed(ids: Sequence[int], model: Model) -> list[int]:
    """Without what pads a row, and without its end."""
    ends = {model.tokenizer.pad_token_id, model.tokenizer.eos_token_id} - {None}
    found = next((at for at, token in enumerate(ids) if token in ends), len(ids))
    return list(ids[:found])


def options_of(model: Model, cell: Cell, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as transformers has them; what it has not is left out."""
    options: dict[str, Any] = {"max_new_tokens": params["max_tokens"], "do_sample": False}
    options["pad_token_id"] = model.tokenizer.pad_token_id or 0
    if cell.rule != "greedy":
        options |= {"do_sample": True, "temperature": params["temperature"], "top_k": 0}
    if cell.rule != "greedy" or "top_k" not in params:
        options |= {name: params[name] for name in NAMES if name in params}
    if "logit_bias" in params:
        biases = params["logit_bias"].items()
        options["sequence_bias"] = [[[token], bias] for token, bias in biases]
        options["bad_words_ids"] = [[token] for token in params["bad_token_ids"]]
        options["min_new_tokens"] = params["min_tokens"]
    if "stop" in params:
        options["stop_strings"] = list(params["stop"])
    if "stop_token_ids" in params:
        end = model.loaded.generation_config.eos_token_id
        options["eos_token_id"] = [end, *params["stop_token_ids"]]
    if "n" in params:
        options["num_return_sequences"] = params["n"] if cell.rule != "greedy" else 1
    if "logprobs" in params:
        options |= {"output_scores": True, "return_dict_in_generate": True}
    if "decoder_prompt" in params:
        begin = model.loaded.generation_config.decoder_start_token_id or 0
        more = model.tokenizer(params["decoder_prompt"], add_special_tokens=False)["input_ids"]
        count = len(model.prompts(cell.batch))
        options["decoder_input_ids"] = torch.tensor([[begin, *more]] * count)
    return options
