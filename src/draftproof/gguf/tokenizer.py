"""The tokenizer of a GGUF file, from its fields.

A byte-level vocabulary (`gpt2`) splits text as the `pre` of the file says, in one of the ways
below; a SentencePiece vocabulary (`llama`) does not split it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from draftproof.gguf.reader import File, read

CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = rf"{CONTRACTED}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
LLAMA3 = (rf"{WORDS}|\p{{N}}{{1,3}}|{SIGNS}|{TAIL}",)
QWEN2 = (rf"{WORDS}|\p{{N}}|{SIGNS}|{TAIL}",)
MARKED = rf"{CONTRACTED}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+"
QWEN35 = (rf"{MARKED}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{TAIL}",)
DEEPSEEK = (
    *(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+"),
    *("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"),
)
GPT2 = ()  # the split that a byte-level pre-tokenizer has itself
DIGITS = (r"\p{N}",)  # each stands alone, then as GPT-2
# By the name that a file gives: how text is split, step by step, and whether a whole word that is
# in the vocabulary is one token, whatever its merges.
SPLITS: dict[str, tuple[tuple[str, ...], bool]] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), (LLAMA3, True)),
    **dict.fromkeys(("smaug-bpe", "dbrx", "chatglm-bpe"), (LLAMA3, False)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), (QWEN2, False)),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt"), (GPT2, False)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), (DIGITS, False)),
    "qwen35": (QWEN35, False),
    "deepseek-coder": (DEEPSEEK, False),
}
COMPOSED = ("qwen2", "deepseek-r1-qwen")  # Unicode's composed form first
# A text begins with a token of its own, even if the file does not say so.
BEGINNING = ("llama-bpe", "llama3", "llama-v3", "falcon3")
NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6  # types of tokens
SPACE = "\u2581"


def of_gguf(path: Path) -> Any:
    """The tokenizer.json beside a file, if there is one; else what its fields say; or None.

    Raises `ValueError`, in one sentence, for a vocabulary that is not known.
    """
    file, beside = read(path), path.parent / "tokenizer.json"
    if not beside.exists():
        made_of = file.fields.get("tokenizer.ggml.model", "no_vocab")
        return None if made_of == "no_vocab" else of_fields(file)
    told = (path.parent / "tokenizer_config.json").exists()
    special = {} if told else _special(file, _listed(file, "tokens", str))
    try:
        if told:
            found = AutoTokenizer.from_pretrained(str(path.parent))
        else:
            found = PreTrainedTokenizerFast(tokenizer_file=str(beside), **special)
    except Exception as error:  # whatever the libraries have against it
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{beside} cannot be read, {reason}: fetch it again") from error
    found.chat_template = found.chat_template or _template(file)
    return found


def of_fields(file: File) -> PreTrainedTokenizerFast:
    kind = file.field("tokenizer.ggml.model", str)
    tokens = _listed(file, "tokens", str)
    if len(set(tokens)) != len(tokens):
        raise ValueError(f"{file.path}: two tokens are alike: it is damaged")
    types = _listed(file, "token_type", int, len(tokens)) or [NORMAL] * len(tokens)
    if kind == "gpt2":
        made = _byte_level(file, tokens)
    elif kind == "llama":
        made = _sentence_piece(file, tokens, types)
    else:
        raise _unknown(file, f"its vocabulary is of kind {kind!r}")
    for at, (token, its) in enumerate(zip(tokens, types, strict=True)):
        if its in (CONTROL, USER):
            added = AddedToken(token, special=its == CONTROL, normalized=False)
            made.add_special_tokens([added]) if its == CONTROL else made.add_tokens([added])
            if made.token_to_id(token) != at:
                raise ValueError(f"{file.path}: the token {token!r} is damaged")
    special = _special(file, tokens)
    begins = kind == "llama" or file.fields.get("tokenizer.ggml.pre") in BEGINNING
    if file.fields.get("tokenizer.ggml.add_bos_token", begins) and "bos_token" in special:
        begin = special["bos_token"]
        made.post_processor = processors.Sequence(
            [
                *([made.post_processor] if made.post_processor is not None else []),
                processors.TemplateProcessing(
                    single=f"{begin} $A",
                    pair=f"{begin} $A {begin} $B",
                    special_tokens=[(begin, tokens.index(begin))],
                ),
            ]
        )
    del tokens, types  # made before objects that stay, they give their memory back whole
    return PreTrainedTokenizerFast(
        tokenizer_object=_Made(made),
        chat_template=_template(file),
        clean_up_tokenization_spaces=False,
        **special,
    )


class _Made:
    """A tokenizer that nobody else has: transformers copies what it is given, by way of text."""

    def __init__(self, made: Tokenizer) -> None:
        self.made = made

    def __deepcopy__(self, memo: dict[int, Any]) -> Tokenizer:
        return self.made


def _template(file: File) -> str | None:
    return file.field("tokenizer.chat_template", str, "") or None


def _unknown(file: File, what: str) -> ValueError:
    return ValueError(
        f"{file.path}: {what}, which is not known: put the model's tokenizer.json beside it"
    )


def _byte_level(file: File, tokens: Sequence[str]) -> Tokenizer:
    pre = str(file.fields.get("tokenizer.ggml.pre", "of no name"))
    if pre not in SPLITS:
        raise _unknown(file, f"its text is split by the rule {pre!r}")
    split, whole = SPLITS[pre]
    pairs = (merge.split(" ") for merge in _listed(file, "merges", str))
    vocabulary = {token: at for at, token in enumerate(tokens)}
    try:
        merges = [(left, right) for left, right in pairs]
        model = models.BPE(vocabulary, merges, ignore_merges=whole)
    except Exception as error:  # whatever the tokenizers library has against its merges
        raise ValueError(f"{file.path}: its merges are damaged, {error}") from None
    made = Tokenizer(model)
    if pre in COMPOSED:
        made.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Split(Regex(each), "isolated") for each in split]
    as_gpt2 = split in (GPT2, DIGITS)
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=as_gpt2))
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return made


def _sentence_piece(file: File, tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    """Merges, which such a file does not list, are all pairs that make a token, by its score."""
    scores = _listed(file, "scores", float, len(tokens))
    vocabulary = {token: at for at, token in enumerate(tokens)}
    merges = []
    for at, token in enumerate(tokens):
        if types[at] in (NORMAL, USER):
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in vocabulary and right in vocabulary:
                    merges.append((-scores[at], vocabulary[left], vocabulary[right], left, right))
    merges.sort()
    unknown = next(
        (token for token, its in zip(tokens, types, strict=True) if its == UNKNOWN), None
    )
    made = Tokenizer(
        models.BPE(
            vocabulary,
            [(left, right) for *_, left, right in merges],
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(file.fields.get("tokenizer.ggml.add_space_prefix", True))
    before = [normalizers.Prepend(SPACE)] if prefix else []
    made.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", SPACE)])
    made.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if prefix else []),
        ]
    )
    return made


def _listed(file: File, name: str, kind: type, count: int | None = None) -> list[Any]:
    """A list of so many of one type (None: of some); without a count, empty where there is none."""
    found: list[Any] = file.field(f"tokenizer.ggml.{name}", list, None if count is None else [])
    if not all(type(each) is kind for each in found):
        raise ValueError(f"{file.path}: its {name} are damaged")
    if count is not None and found and len(found) != count:
        raise ValueError(f"{file.path} has {count} tokens and {len(found)} {name}: it is damaged")
    return found


def _special(file: File, tokens: Sequence[str]) -> dict[str, str]:
    """The tokens that begin and end a text, and so on, as far as there are such."""
    found = {f"{name}_token": _token(file, tokens, name) for name in ("bos", "eos", "unk", "pad")}
    return {name: token for name, token in found.items() if token is not None}


def _token(file: File, tokens: Sequence[str], name: str) -> str | None:
    long = {"unk": "unknown", "pad": "padding"}.get(name, name)
    at = file.fields.get(f"tokenizer.ggml.{long}_token_id")
    if at is None:
        return None
    if type(at) is not int or not 0 <= at < len(tokens):
        raise ValueError(
            f"{file.path}: its {name} token is {at!r}, of {len(tokens)}: it is damaged"
        )
    return tokens[at]
