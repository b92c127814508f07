"""Names that transformers, vLLM and llama.cpp have for things, and what does the same here.

Only words for errors: nothing is translated behind a user's back.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, ParamSpec, TypeVar

NEAR = 0.7  # how like a name another has to be to be what was meant: detokenize is no bad_token_ids
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

IN_THE_NAME = "a file is named with its model: dp.LLM('owner/name/FILE.gguf')"
ONE_DEVICE = "there is none, a model runs on one device: drop it"
NO_BEAMS = "beam search is not supported: drop it, or sample several with n="
DECODED = "the text is always without special tokens; all are in token_ids"
GRAMMAR = "use grammar=dp.Grammar.json(schema), .regex, .choice or .lark"
AS_LOADED = "load the model with it yourself, and pass the model"
LLM = {
    "assistant_model": "use speculate=dp.DraftModel(...)",
    "assistant_tokenizer": "use speculate=dp.ForeignDraft(model, tokenizer=..., ...)",
    **dict.fromkeys(("attn_implementation", "enable_lora", "hf_overrides"), AS_LOADED),
    "block_size": "pages of keys and values have one size: drop it",
    "chat_template": "set it on a tokenizer, and pass tokenizer=",
    **dict.fromkeys(("compilation_config", "enforce_eager"), "nothing is compiled here: drop it"),
    "device_map": "use device=",
    "draft_model": "use speculate=dp.DraftModel(...)",
    "enable_prefix_caching": "use prefix_cache=True",
    **dict.fromkeys(("cache_dir", "download_dir"), "set the variable HF_HOME: it lies there"),
    **dict.fromkeys(("file", "filename", "gguf_file", "model_file"), IN_THE_NAME),
    **dict.fromkeys(("cpu_offload_gb", "data_parallel_size"), ONE_DEVICE),
    **dict.fromkeys(("pipeline_parallel_size", "tensor_parallel_size"), ONE_DEVICE),
    "generation_config": "use dp.SamplingParams.from_model(llm)",
    "gpu_memory_utilization": "caches take what requests need: use max_batch= and max_length=",
    "kv_cache_dtype": "keys and values are kept as the model computes them: drop it",
    "load_format": "safetensors and PyTorch files are found by themselves: drop it",
    "load_in_4bit": 'use dtype="int4"',
    "load_in_8bit": 'use dtype="int8"',
    **dict.fromkeys(
        ("enable_chunked_prefill", "max_num_batched_tokens"),
        "long prompts are read in slices anyway: drop it",
    ),
    **dict.fromkeys(("hf_token", "token"), "set the variable HF_TOKEN"),
    "local_files_only": "set the variable HF_HUB_OFFLINE=1",
    "max_model_len": "use max_length=",
    "max_num_seqs": "use max_batch=",
    "max_seq_len": "use max_length=",
    "model_path": "the model is the first argument: dp.LLM(model)",
    "n_batch": "use max_batch=, the number of requests that run at once",
    "n_ctx": "use max_length=",
    "n_gpu_layers": 'use device="cuda", for the whole model',
    "n_threads": "use threads=",
    "num_speculative_tokens": (
        "use speculate=dp.NGram(num_draft_tokens=...), or of dp.DraftModel the same"
    ),
    "prompt_lookup_num_tokens": 'use speculate="ngram"',
    "quantization": 'use dtype="int8"',
    "quantization_config": 'use dtype="int8"',
    "served_model_name": "that is --served-name of draftproof serve: drop it",
    "skip_tokenizer_init": "prompts may be token ids anyway: drop it",
    "seed": "each request has its own: use dp.SamplingParams(seed=...)",
    "speculative_config": (
        'use speculate="ngram", dp.DraftModel(model, num_draft_tokens=...), dp.Medusa(heads) or '
        "another method"
    ),
    "speculative_model": "use speculate=dp.DraftModel(...)",
    "swap_space": "nothing is swapped out here: drop it",
    "tokenizer_mode": "use tokenizer=, with a folder, a name or a tokenizer",
    "torch_dtype": "use dtype=",
    "use_cache": "keys and values are always kept: drop it",
    "use_fast": "load the tokenizer yourself, and pass tokenizer=",
    **dict.fromkeys(("disable_log_stats", "verbose"), "nothing is printed here: drop it"),
}
SAMPLING = {
    "allowed_token_ids": "ban the others with bad_token_ids=",
    "bad_words": "use bad_token_ids=, with token ids",
    "bad_words_ids": "use bad_token_ids=, for single tokens",
    "beam_width": NO_BEAMS,
    "best_of": "use n=, and choose among the completions yourself",
    "do_sample": "temperature= says it: above 0 samples, 0 is greedy",
    "dry_multiplier": "use repetition_penalty=",
    "detokenize": "the text is always there, beside token_ids: drop it",
    "early_stopping": NO_BEAMS,
    "eos_token_id": "use stop_token_ids=; those of the model end every output anyway",
    "forced_eos_token_id": "use max_tokens=: an output that is cut has no end token",
    "generation_config": "use dp.SamplingParams.from_model(llm)",
    **dict.fromkeys(("guided_decoding", "guided_json", "guided_regex"), GRAMMAR),
    **dict.fromkeys(("guided_choice", "guided_grammar", "structured_outputs"), GRAMMAR),
    "json_schema": "use grammar=dp.Grammar.json(schema)",
    "include_stop_str_in_output": "the text always ends before a stop string: drop it",
    "length_penalty": NO_BEAMS,
    **dict.fromkeys(
        ("logits_processor", "stopping_criteria"),
        "use it in transformers, with custom_generate=dp.custom_generate(...)",
    ),
    "logits_processors": "use them in transformers, with custom_generate=dp.custom_generate(...)",
    "max_completion_tokens": "use max_tokens=",
    "max_length": "use max_tokens=, of the output; LLM(max_length=) bounds prompt and output",
    "max_new_tokens": "use max_tokens=",
    "min_new_tokens": "use min_tokens=",
    **dict.fromkeys(("mirostat", "mirostat_mode"), "use temperature=, top_p= or min_p="),
    "n_predict": "use max_tokens=",
    "no_repeat_ngram_size": "use repetition_penalty=, or custom_generate in transformers",
    "num_beams": NO_BEAMS,
    "num_return_sequences": "use n=",
    "pad_token_id": "outputs are lists without padding: drop it",
    "repeat_penalty": "use repetition_penalty=",
    "response_format": "use grammar=dp.Grammar.json(schema) or .any_json()",
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), DECODED),
    "stop_sequences": "use stop=",
    "stop_strings": "use stop=",
    "stream": "use llm.stream(prompt)",
    "streamer": "use llm.stream(prompt)",
    "output_kind": "use llm.stream(prompt)",
    "suppress_tokens": "use bad_token_ids=",
    "temp": "use temperature=",
    "truncate_prompt_tokens": "shorten the prompt yourself: drop it",
    "use_cache": "keys and values are always kept: drop it",
    "tfs_z": "use top_p= or min_p=",
    "typical_p": "use top_p= or min_p=, or custom_generate in transformers",
    "use_beam_search": NO_BEAMS,
    "xtc_probability": "use temperature=, top_p= or min_p=",
}
_OURS = (
    "temperature top_k top_p min_p repetition_penalty presence_penalty frequency_penalty "
    "logit_bias bad_token_ids min_tokens max_tokens stop stop_token_ids ignore_eos seed logprobs n "
    "resume prompt_logprobs speculate max_draft_nodes grammar prediction"
)
CALLS = {  # of `LLM.generate` and its like
    **{n: f"give dp.SamplingParams({n}=...) as the second argument" for n in _OURS.split()},
    **{
        n: way
        if "drop it" in way
        else f"it goes into dp.SamplingParams, the second argument: {way}"
        for n, way in SAMPLING.items()
    },
    **dict.fromkeys(("stream", "streamer"), "use llm.stream(prompt)"),
    "assistant_model": "use dp.LLM(model, speculate=dp.DraftModel(draft))",
    "attention_mask": "give lists without padding, or all that the tokenizer returned as one",
    "continue_final_message": "use llm.generate on the text of a template, without its end",
    "custom_generate": "that is for model.generate of transformers: here use speculate= of dp.LLM",
    "generation_config": "use params=dp.SamplingParams.from_model(llm)",
    "add_generation_prompt": "llm.chat always asks for an answer: drop it",
    "input_ids": "token ids are the first argument: llm.generate(ids)",
    "lora_request": "load the model with its adapter yourself, and pass the model to dp.LLM",
    "prompt_token_ids": "token ids are the first argument: llm.generate(ids)",
    "sampling_params": "use params=, or the second argument",
    "return_dict_in_generate": "each completion has its .token_ids, .logprobs and .stats: drop it",
    "tokenizer": "it is given once: dp.LLM(model, tokenizer=...)",
    "chat_template": "set it on the tokenizer: llm.tokenizer.chat_template = text",
    "chat_template_kwargs": (
        "use llm.generate(llm.tokenizer.apply_chat_template(messages, add_generation_prompt=True, "
        "**them))"
    ),
    "priority": "whoever came first is first: drop it",
    "tools": "use llm.chat(messages, tools=...)",
    "use_tqdm": "nothing is printed here: drop it",
}
_NODES = "use num_draft_tokens="
_LONGEST, _SHORTEST = "use max_ngram=", "use min_ngram="
DRAFTERS = {  # of every drafting method
    "assistant_confidence_threshold": "use min_confidence=",
    "assistant_model": "a draft is dp.DraftModel(model)",
    "draft_model": "the draft is the first argument: dp.DraftModel(model)",
    "draft_tensor_parallel_size": ONE_DEVICE,
    "dtype": 'a draft has its own precision: quantize="int8", "int4" or "none"',
    "max_matching_ngram_size": _LONGEST,
    "max_ngram_size": _LONGEST,
    "method": "a method is a class here: dp.NGram(), dp.DraftModel(model)",
    "model_path": "the draft is the first argument: dp.DraftModel(model)",
    "num_assistant_tokens": _NODES,
    "num_pred_tokens": _NODES,
    "num_speculative_tokens": _NODES,
    "prompt_lookup_max": _LONGEST,
    "prompt_lookup_min": _SHORTEST,
    "prompt_lookup_num_tokens": _NODES,
    "quantization": 'use quantize="int8", of dp.DraftModel',
}
KEYWORDS = {"LLM": LLM, "SamplingParams": SAMPLING}
ATTRIBUTES = {
    "Completion": {
        "choices": "generate returns one Completion for each: use its .text",
        "cumulative_logprob": "ask for logprobs=0, and add up those in .logprobs",
        "generated_text": "use .text",
        "finished": "generate returns what is: drop it",
        "metrics": "use .stats",
        "num_cached_tokens": "use .stats.cached",
        "outputs": "generate returns one Completion for each: use its .text and .token_ids",
        "prompt": "use .prompt_token_ids",
        "sequences": "use .prompt_token_ids and .token_ids",
        "stop_reason": "use .finish_reason",
        "usage": "use .prompt_token_ids, .token_ids and .stats",
    },
    "LLM": {
        "beam_search": NO_BEAMS,
        "from_pretrained": "the class itself loads: dp.LLM(model)",
        "config": "use .runner.model.config",
        "create_chat_completion": "use .chat(messages)",
        "create_completion": "use .generate(prompt)",
        "decode": "use .tokenizer.decode(ids)",
        "detokenize": "use .tokenizer.decode(ids), without a list around them",
        "device": "use .runner.device",
        "embed": "embeddings are not supported",
        **dict.fromkeys(("eval", "train"), "nothing to set, an LLM only writes: drop it"),
        **dict.fromkeys(("to", "cuda", "cpu"), "say it at load: dp.LLM(model, device=...)"),
        "encode": "use .tokenizer(text)",
        "get_default_sampling_params": "use dp.SamplingParams.from_model(llm)",
        "get_metrics": "use the .stats of each completion",
        "get_tokenizer": "use .tokenizer",
        "llm_engine": "use .engine",
        "model": "use .runner.model",
        "shutdown": "use .close()",
        "tokenize": "use .tokenizer(text)",
    },
}

MODULE = {  # names of other libraries that are asked of the package
    **dict.fromkeys(("AutoModelForCausalLM", "Llama", "load", "load_model"), "use dp.LLM(model)"),
    **dict.fromkeys(
        ("AsyncLLM", "AsyncLLMEngine", "EngineArgs", "AsyncEngineArgs", "LLMEngine"),
        "use dp.LLM(model), whose stream() and generate() any thread may call",
    ),
    **dict.fromkeys(
        ("GuidedDecodingParams", "StructuredOutputsParams", "LlamaGrammar"),
        "use dp.SamplingParams(grammar=dp.Grammar.json(schema))",
    ),
    "GenerationConfig": "use dp.SamplingParams",
    "AutoTokenizer": "use dp.LLM(model).tokenizer",
    "generate": "use dp.LLM(model).generate(prompts)",
    "pipeline": "use dp.LLM(model).generate(prompts)",
}


class Explained(type):
    """Of a class whose missing attributes are asked for on the class itself."""

    def __getattr__(cls, name: str) -> Any:
        raise no_attribute(cls.__name__, name)


def explains(
    place: str, known: Mapping[str, str] = CALLS
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A callable whose `TypeError` about another library's keyword says what to use instead."""

    def decorate(call: Callable[P, R]) -> Callable[P, R]:
        own = inspect.signature(call).parameters
        free = [n for n, each in own.items() if each.kind is not each.KEYWORD_ONLY]
        any_number = any(each.kind is each.VAR_POSITIONAL for each in own.values())
        any_name = any(each.kind is each.VAR_KEYWORD for each in own.values())

        @functools.wraps(call)
        def checked(*args: P.args, **options: P.kwargs) -> R:
            for name in sorted(options.keys() - own.keys(), key=lambda n: (n not in known, n)):
                near = difflib.get_close_matches(name, own.keys() - {"self"}, 1, NEAR)
                every = ", ".join(f"{n}=" for n in own if n != "self")
                way = known.get(name) or (f"did you mean {near[0]}?" if near else f"it has {every}")
                if name in known or not any_name:
                    raise TypeError(f"{place} has no {name}: {way}")
            if len(args) > len(free) and free and not any_number:
                others = ", ".join(f"{n}=" for n in own if n not in free) or "no others"
                raise TypeError(f"{place} takes {len(free) - 1} without a name; by name: {others}")
            return call(*args, **options)

        return checked

    return decorate


def explaining(kind: type[T]) -> type[T]:
    """A class that is made like this; see `explains`."""
    known = KEYWORDS.get(kind.__name__, DRAFTERS)
    kind.__init__ = explains(kind.__name__, known)(kind.__init__)  # type: ignore[method-assign]
    return kind


def no_copy(what: str, way: str) -> TypeError:
    """What to raise where an object is to be copied or pickled that cannot be."""
    return TypeError(f"{what} holds caches and locks, and is neither copied nor pickled: use {way}")


def no_attribute(place: str, name: str) -> AttributeError:
    """What to raise where an attribute is asked for that only another library has."""
    way = ATTRIBUTES[place].get(name)
    return AttributeError(f"{place} has no attribute {name!r}" + (f": {way}" if way else ""))


def not_of_the_package(name: str, public: Collection[str]) -> str:
    """What to say where the package is asked for a name that it does not have."""
    near = difflib.get_close_matches(name.lower(), map(str.lower, public), 1, NEAR)
    meant = next((each for each in public if near and each.lower() == near[0]), None)
    way = MODULE.get(name) or (f"did you mean {meant}?" if meant else None)
    return f"module 'draftproof' has no attribute {name!r}" + (f": {way}" if way else "")
