"""A draft with another tokenizer: nothing it does shows, and its bookkeeping is exact."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerFast as Fast

import draftproof as dp
import tiny
from drafters import NATIVE, check_counters
from draftproof.proposers.foreign import ForeignDraft
from draftproof.request import Request
from draftproof.runners.base import Output, Work
from draftproof.tree import TokenTree
from laws import check_law, small

BUNDLED = Path(dp.__file__).parent / "bundled" / "models"
LINES = [
    "the quick brown fox jumps over the lazy dog and the other dog",
    "der müde Bär schläft, die Füchse grüßen: schön, größer, am größten",
    "def return_value(value): return value + 1  # the value 😀 😀😁",
    "naïve café, the price: 10 € 日本語 日本",
]
PROMPTS = ["the dog", "Grüße 😀", "日本語 is", "def return_value(v"]
DRAFTS = ["bytes", "merges", "wordpiece", "words", "metaspace"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine two threads wait for each other longer than these models compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- tokenizers ---


@cache
def bytewise() -> Fast:
    """The target's: 0 pad, 1 bos, 2 end of text, 3.. the bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2} | {c: i + 3 for i, c in enumerate(alphabet)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return Fast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


@cache
def other(name: str) -> Fast:
    """A draft's tokenizer of the named kind, trained on LINES."""
    special = ["[BOS]", "[UNK]"]
    made, trainer = {
        "bytes": lambda: (
            Tokenizer(models.BPE()),
            trainers.BpeTrainer(
                vocab_size=258,
                special_tokens=special,
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            ),
        ),
        "merges": lambda: (
            Tokenizer(models.BPE()),
            trainers.BpeTrainer(
                vocab_size=330,
                special_tokens=special,
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            ),
        ),
        "wordpiece": lambda: (
            Tokenizer(models.WordPiece(unk_token="[UNK]")),
            trainers.WordPieceTrainer(vocab_size=120, special_tokens=special),
        ),
        "words": lambda: (
            Tokenizer(models.WordLevel(unk_token="[UNK]")),
            trainers.WordLevelTrainer(special_tokens=special),
        ),
        "metaspace": lambda: (
            Tokenizer(models.BPE(unk_token="[UNK]", byte_fallback=True)),
            trainers.BpeTrainer(
                vocab_size=420, special_tokens=special + [f"<0x{i:02X}>" for i in range(256)]
            ),
        ),
    }[name]()
    made.pre_tokenizer = {
        "wordpiece": pre_tokenizers.BertPreTokenizer,
        "words": pre_tokenizers.Whitespace,
        "metaspace": pre_tokenizers.Metaspace,
    }.get(name, lambda: pre_tokenizers.ByteLevel(add_prefix_space=False))()
    made.train_from_iterator(LINES, trainer)
    if name == "metaspace":
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
        return Fast(tokenizer_object=made, bos_token="[BOS]")
    made.decoder = decoders.WordPiece() if name == "wordpiece" else decoders.ByteLevel()
    if name == "words":
        made.decoder = decoders.WordPiece(prefix="\0")  # a space before every word
    return Fast(tokenizer_object=made, bos_token="[BOS]", unk_token="[UNK]")


class Shuffled:
    """A tokenizer whose ids went through a permutation: `order[old] == new`."""

    bos_token_id = None

    def __init__(self, inner: Any, order: Sequence[int]) -> None:
        self.inner, self.order = inner, list(order)
        self.back = {new: old for old, new in enumerate(self.order)}
        self.all_special_ids = [self.order[i] for i in inner.all_special_ids]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = self.inner.encode(text, add_special_tokens=add_special_tokens)
        return [self.order[i] for i in ids]

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        return str(self.inner.decode([self.back[i] for i in ids], **options))

    def get_vocab(self) -> dict[str, int]:
        return {string: self.order[i] for string, i in self.inner.get_vocab().items()}


def permutation(size: int) -> list[int]:
    return torch.randperm(size, generator=torch.Generator().manual_seed(5)).tolist()


def shuffled(model: PreTrainedModel, order: Sequence[int]) -> PreTrainedModel:
    """The model whose row `order[i]` is the given model's row i."""
    made = copy.deepcopy(model)
    tied = {id(m.weight): m.weight for m in (made.get_input_embeddings(), made.lm_head)}
    with torch.no_grad():
        for weight in tied.values():
            weight[:] = weight[torch.tensor(order).argsort()].clone()
    return made


# --- models ---


@cache
def target() -> PreTrainedModel:
    return tiny.model("llama", dtype=torch.float64, vocab_size=259, num_hidden_layers=2)


@cache
def draft(name: str) -> PreTrainedModel:
    size = len(other(name)) + 3  # some rows that the tokenizer knows nothing of
    return tiny.model("llama", 7, torch.float64, vocab_size=size, num_hidden_layers=2)


def foreign(name: str, **options: Any) -> ForeignDraft:
    return ForeignDraft(
        draft(name),
        tokenizer=other(name),
        target_tokenizer=bytewise(),
        **{"min_confidence": 0.0, **options},
    )


ASCII = tuple(i for i in range(259) if i < 3 or not bytewise().decode([i]).isascii())
GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 3}
PENALISED: dict[str, Any] = {
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "logit_bias": {40: 1.5},
}
ALL = {
    "greedy": GREEDY,
    "greedy, penalised": GREEDY | PENALISED,
    "sampled": SAMPLED,
    "sampled, penalised": SAMPLED | PENALISED,
}


def params(**options: Any) -> dp.SamplingParams:
    return dp.SamplingParams(**{"max_tokens": 18, "ignore_eos": True, **options})


def guarded(runner: Any) -> list[Sequence[Work]]:
    """The runner's passes from now on; an id out of range fails at once."""
    passes: list[Sequence[Work]] = []
    forward = runner.forward

    def run(work: Sequence[Work], *args: Any, **options: Any) -> list[Output]:
        for item in work:
            ids = [*item.new, *(item.tree.tokens if item.tree is not None else ())]
            assert all(0 <= i < runner.vocabulary for i in ids)
        passes.append(work)
        made: list[Output] = forward(work, *args, **options)
        return made

    runner.forward = run
    return passes


def written(proposer: Any, batch: int, rule: str = "coupled", **options: Any) -> Any:
    """Completions of the last `batch` of PROMPTS; every pass of target and draft is guarded."""
    with dp.LLM(
        target(), tokenizer=bytewise(), speculate=proposer, rule=rule, max_batch=min(batch, 3)
    ) as llm:
        guarded(llm.runner)
        if proposer is not None:
            guarded(proposer.runner)
        outs = llm.generate(PROMPTS[-batch:], params(**options))
    assert all(out.warnings == [] and out.error is None for out in outs)
    return outs


@cache
def plain(kind: str, banned: tuple[int, ...]) -> list[list[int]]:
    outs = written(None, 4, bad_token_ids=banned, **ALL[kind])
    return [out.token_ids for out in outs]


# --- the output is that of plain decoding ---


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("name", DRAFTS)
def test_tokens_are_those_of_plain_decoding(name: str, kind: str) -> None:
    proposer, drafted = foreign(name), 0
    for batch in (4, 1):
        outs = written(proposer, batch, bad_token_ids=ASCII, **ALL[kind])
        assert [out.token_ids for out in outs] == plain(kind, ASCII)[-batch:]
        drafted += sum(out.stats.drafted for out in outs)
        assert 0 <= proposer.survival <= 1
    assert drafted > 0


@pytest.mark.parametrize("kind", ["greedy, penalised", "sampled, penalised"])
@pytest.mark.parametrize("name", ["qwen3", "gemma3", pytest.param("native", marks=NATIVE)])
def test_tokens_on_other_targets(name: str, kind: str) -> None:
    native = name == "native"
    shape: dict[str, Any] = {"dtype": torch.bfloat16, "head_dim": 16} if native else {}
    model = tiny.model("llama" if native else name, vocab_size=259, **shape)
    size = len(other("merges")) + 3
    proposer = ForeignDraft(
        tiny.model("llama", 7, vocab_size=size, num_hidden_layers=2, **shape),
        tokenizer=other("merges"),
        target_tokenizer=bytewise(),
        min_confidence=0.0,
    )
    options = params(bad_token_ids=ASCII, **ALL[kind])
    base = dp.LLM(model, tokenizer=bytewise(), runner="native" if native else "torch", max_batch=1)
    want = [out.token_ids for out in base.generate(PROMPTS, options)]
    with dp.LLM(base, speculate=proposer, max_batch=3) as llm:
        outs = llm.generate(PROMPTS, options)
    assert [out.token_ids for out in outs] == want and sum(out.stats.drafted for out in outs)


def test_the_law_of_the_rejection_rule() -> None:
    """What it proposes carries no laws, so it has to be verified as one-hot."""
    letters = {letter: i for i, letter in enumerate("abcdefgh"[: small(0).config.vocab_size])}
    made = Tokenizer(models.WordLevel(letters, unk_token="a"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse()
    both = Fast(tokenizer_object=made)
    proposer = ForeignDraft(small(1), tokenizer=both, target_tokenizer=both, min_confidence=0.0)
    check_law("rejection", proposer, 1200, max_tokens=4)


@pytest.mark.parametrize("kind", ["greedy, penalised", "sampled, penalised"])
def test_two_turns_of_a_chat_with_a_prefix_cache(kind: str) -> None:
    options = params(bad_token_ids=ASCII, **ALL[kind])
    proposer = foreign("merges")
    with (
        dp.LLM(target(), tokenizer=bytewise()) as alone,
        dp.LLM(
            target(), tokenizer=bytewise(), speculate=proposer, prefix_cache=True, max_batch=1
        ) as llm,
    ):
        asked = bytewise().encode(LINES[0], add_special_tokens=False)
        passes = guarded(proposer.runner)
        for _ in range(3):
            begin = len(passes)
            (out,) = llm.generate([asked], options)
            assert out.token_ids == alone.generate([asked], options)[0].token_ids
            asked = [*asked, *out.token_ids, 40, 41]
        again = passes[begin][0]
        assert 0 < len(again.new) < 16, "the first turns were read again"


@pytest.mark.parametrize("kind", ["greedy, penalised", "sampled, penalised"])
def test_an_output_of_any_bytes(kind: str) -> None:
    outs = written(foreign("merges"), 4, **ALL[kind])
    assert [out.token_ids for out in outs] == plain(kind, ())
    assert any("\ufffd" in out.text for out in outs)


@pytest.mark.parametrize("name", ["merges", "wordpiece"])
def test_the_rejection_rule(name: str) -> None:
    cold = written(foreign(name), 4, "rejection", bad_token_ids=ASCII, **GREEDY)
    assert [out.token_ids for out in cold] == plain("greedy", ASCII)
    proposer = foreign(name)
    outs = written(proposer, 3, "rejection", bad_token_ids=ASCII, **SAMPLED)
    assert all(len(out.token_ids) == 18 for out in outs)
    assert sum(out.stats.drafted for out in outs) > 0


# --- the same model behind other ids is a perfect draft ---


def behind_other_ids() -> ForeignDraft:
    order = permutation(259)
    return ForeignDraft(
        shuffled(target(), order),
        tokenizer=Shuffled(bytewise(), order),
        target_tokenizer=bytewise(),
        min_confidence=0.0,
    )


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_the_target_behind_other_ids_is_always_right(kind: str, rule: str) -> None:
    proposer = behind_other_ids()
    outs = written(proposer, 4, rule, bad_token_ids=ASCII, **ALL[kind])
    if rule == "coupled":
        assert [out.token_ids for out in outs] == plain(kind, ASCII)
    if rule == "coupled" or kind.startswith("greedy"):
        assert [out.stats.steps for out in outs] == [3] * 4  # 18 tokens, 6 a step
        assert all(out.stats.accepted == out.stats.drafted for out in outs)
    assert sum(out.stats.accepted for out in outs) > 0
    assert proposer.survival == 1.0


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_counters_are_those_of_the_trace(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"tokenizer": bytewise(), "speculate": behind_other_ids(), "rule": rule}
    with dp.LLM(target(), max_batch=3, **options) as llm:
        some = [params(bad_token_ids=ASCII), params(temperature=0.9, seed=3, bad_token_ids=ASCII)]
        check_counters(monkeypatch, llm, PROMPTS, some)


@cache
def bundled(name: str) -> tuple[PreTrainedModel, Any]:
    folder = BUNDLED / name
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return loaded, AutoTokenizer.from_pretrained(folder)


def coarser(tokenizer: Any, share: float) -> Any:
    """The tokenizer without its last merges, so that many of its words are in more pieces."""
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    merges = spec["model"]["merges"]
    spec["model"]["merges"] = merges[: int(share * len(merges))]
    made = Tokenizer.from_str(json.dumps(spec))
    return Fast(tokenizer_object=made, bos_token=tokenizer.bos_token)


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_a_trained_pair_with_two_tokenizers(temperature: float) -> None:
    (model, tokenizer), (small, own) = bundled("target"), bundled("draft")
    order = permutation(8192)
    proposers = [
        dp.DraftModel(small, branch=1, min_confidence=0.0),
        ForeignDraft(
            shuffled(small, order),
            tokenizer=Shuffled(own, order),
            target_tokenizer=tokenizer,
            min_confidence=0.0,
        ),
        ForeignDraft(
            small,
            tokenizer=coarser(own, 0.5),
            target_tokenizer=tokenizer,
            min_confidence=0.0,
        ),
    ]
    texts = ["def read(self, size=-1):\n    ", "import os\nimport sys\n\nclass Größe:\n"]
    results = []
    for proposer in proposers:
        with dp.LLM(model, tokenizer=tokenizer, speculate=proposer) as llm:
            outs = llm.generate(
                texts, dp.SamplingParams(temperature=temperature, max_tokens=48, seed=1)
            )
        results.append(sum(out.stats.accepted for out in outs))
    own_tokens, permuted, halves = results
    assert permuted >= 0.8 * own_tokens > 0
    assert halves >= 0.8 * own_tokens
    assert all(0.9 < proposer.survival <= 1 for proposer in proposers[1:])


# --- bookkeeping, with a draft that writes what it is told ---


class Scribe:
    """A draft's runner that knows what text comes: `says(ids so far)` is the next id.

    Keeps what is committed and what is scratch, and refuses what a runner would.
    """

    device, max_length = torch.device("cpu"), 1 << 20

    def __init__(
        self, vocabulary: int, says: Callable[[list[int]], int], sure: float = 9.0
    ) -> None:
        self.vocabulary, self.says, self.sure = vocabulary, says, sure
        self.committed: dict[int, list[int]] = {}
        self.scratch: dict[int, list[int]] = {}
        self.contexts: list[list[int]] = []
        self.passes: list[list[int]] = []
        self.rows: list[int] = []

    def cached(self, key: int) -> int:
        return len(self.committed.get(key, ()))

    def free(self, key: int) -> None:
        self.committed.pop(key, None)

    def forward(self, work: Sequence[Work], taps: Any = ()) -> list[Output]:
        self.passes.append([item.key for item in work])
        outputs = []
        for item in work:
            self.committed.setdefault(item.key, []).extend(item.new)
            if item.tree is None:
                outputs.append(Output(torch.empty(0, self.vocabulary)))
                continue
            tokens = list(item.tree.tokens)
            if item.first:
                assert not item.new and self.scratch[item.key] == tokens[: item.first]
            self.scratch[item.key] = tokens
            context = self.committed[item.key] + tokens
            assert all(0 <= i < self.vocabulary for i in context)
            self.contexts.append(context)
            self.rows.append(len(tokens) - item.first)
            logits = torch.zeros(self.rows[-1], self.vocabulary)
            logits[-1, self.says(context)] = self.sure
            outputs.append(Output(logits))
        return outputs


def bound(scribe: Scribe, tokenizer: Any, vocabulary: int = 259, **options: Any) -> ForeignDraft:
    made = ForeignDraft(
        scribe,
        tokenizer=tokenizer,
        target_tokenizer=bytewise(),
        **{"min_confidence": 0.0, **options},
    )
    target = SimpleNamespace(vocabulary=vocabulary)
    made.bind(target, lambda target, model: model)  # type: ignore[arg-type]
    return made


def request(text: str | Sequence[int], key: int = 0, **options: Any) -> Request:
    ids = bytewise().encode(text, add_special_tokens=False) if isinstance(text, str) else text
    rule = options.pop("rule", "coupled")
    return Request(key, ids, params(**{"max_tokens": 500, **options}), seed=1, rule=rule)


def follows(tokenizer: Any, text: str) -> Callable[[list[int]], int]:
    """Says the tokens of `text`, whatever came before."""
    ids = tokenizer.encode(text, add_special_tokens=False)

    def says(context: list[int]) -> int:
        for size in range(min(len(ids) - 1, len(context)), 0, -1):
            if context[-size:] == ids[:size]:
                return int(ids[size])
        return int(ids[0])

    return says


def drafted(tree: TokenTree) -> str:
    return str(bytewise().decode(list(tree.tokens[1:])))


def test_a_greedy_draft_is_the_targets_encoding_of_what_it_wrote() -> None:
    own = other("merges")
    scribe = Scribe(len(own), follows(own, " value: return value"))
    proposer = bound(scribe, own)
    one = request("the")
    (tree,) = proposer.propose([one])
    assert tree.is_chain and tree.laws is None and tree.tokens[0] == one.tokens[-1]
    wrote = own.decode(scribe.contexts[-1] + [scribe.says(scribe.contexts[-1])])
    assert "[BOS]the" + drafted(tree) == wrote
    assert len(scribe.passes) == 5 and len(tree) > 6  # longer tokens than the target's
    assert proposer.survival == 1.0


def test_under_another_rule_the_likeliest_text_is_proposed() -> None:
    own = other("merges")
    scribe = Scribe(len(own), follows(own, " value: return value"), sure=2.0)
    proposer = bound(scribe, own)
    kinds = [{}, {"rule": "rejection", "temperature": 5.0}, {"rule": "typical", "temperature": 5.0}]
    trees = proposer.propose([request("the", key, **kind) for key, kind in enumerate(kinds)])
    assert len({tuple(tree.tokens) for tree in trees}) == 1 and len(trees[0]) > 6
    assert all(tree.laws is None for tree in trees)


def test_survival_is_exact() -> None:
    own = other("bytes")
    scribe = Scribe(len(own), follows(own, "ab😀"))
    proposer = bound(scribe, own, num_draft_tokens=4)
    assert proposer.survival == 1.0
    (tree,) = proposer.propose([request("the ")])
    assert drafted(tree) == "ab"  # and half an emoji, which is one broken character
    assert (proposer.written, proposer.survived) == (4, 2) and proposer.survival == 2 / 4
    (tree,) = proposer.propose([request("the ", 1, temperature=1.0, logit_bias={5: 0.0})])
    raced = list(tree.tokens[1:])
    assert len(raced) == 4 and (proposer.written, proposer.survived) == (8, 6)


def test_a_race_is_over_strings_that_both_have() -> None:
    own = other("merges")
    scribe = Scribe(len(own) + 2, follows(own, "the dog and"))
    proposer = bound(scribe, own, num_draft_tokens=3)
    strings, theirs = own.get_vocab(), bytewise().get_vocab()
    shared = {tip: i for tip, i in proposer.ids.items() if tip < 259}
    assert shared == {theirs[c]: strings[c] for c in pre_tokenizers.ByteLevel.alphabet()}
    assert sorted(proposer.ids.values()) == list(range(len(own) + 2))
    (tree,) = proposer.propose([request("the ", temperature=1.0)])
    assert all(3 <= token < 259 for token in tree.tokens) and len(tree) == 4
    for token, context in zip(tree.tokens[1:], [c[-1] for c in scribe.contexts[1:]], strict=False):
        assert shared[token] == context, "the draft went on behind another token"


def test_spaces_are_matched_whatever_the_alphabet() -> None:
    own, theirs = other("metaspace"), other("merges")
    proposer = ForeignDraft(None, tokenizer=own, target_tokenizer=theirs)
    runner = SimpleNamespace(vocabulary=len(own), device="cpu")
    target = SimpleNamespace(vocabulary=len(theirs))
    proposer.bind(target, lambda target, model: runner)  # type: ignore[arg-type]
    spelt = {
        own.convert_ids_to_tokens(i): theirs.convert_ids_to_tokens(t)
        for t, i in proposer.ids.items()
        if t < len(theirs)
    }
    assert spelt["▁the"] == "Ġthe" and spelt["e"] == "e" and spelt["▁value"] == "Ġvalue"
    assert spelt["ü"] == "Ã¼"


@pytest.mark.parametrize("name", ["merges", "metaspace"])
@given(text=st.text(max_size=40) | st.text("the value ünd", max_size=40), data=st.data())
@settings(max_examples=50)
def test_the_drafts_context_is_the_text_so_far(name: str, text: str, data: st.DataObject) -> None:
    own = other(name)
    scribe = Scribe(len(own), lambda context: 70)
    proposer = bound(scribe, own, lookbehind=data.draw(st.integers(1, 5)))
    ids = bytewise().encode(text + " end 😀", add_special_tokens=False)
    one = request(ids[: data.draw(st.integers(1, len(ids)))])
    while True:
        before = len(scribe.contexts)
        (tree,) = proposer.propose([one])
        whole = bytewise().decode(one.tokens)
        if whole.endswith("\ufffd"):
            assert len(tree) == 1 and len(scribe.contexts) == before
        else:
            alone = own.encode("[BOS]" + whole, add_special_tokens=False)
            assert own.decode(scribe.contexts[before]) == own.decode(alone)
            assert len(scribe.contexts) == before + 5
        done = len(one.tokens)
        if done == len(ids):
            return
        one.tokens += ids[done : done + data.draw(st.integers(1, 9))]


def test_what_is_settled_is_cached_and_little_is_run_anew() -> None:
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    proposer = bound(scribe, own)
    one = request((" ".join(LINES) + " ") * 20)
    assert len(one.tokens) > 3 * 512
    for _ in range(4):  # a long prompt in slices, one a step
        assert len(proposer.propose([one])[0]) == 1
    assert scribe.passes == [[0]] * 4 and 0 not in scribe.scratch
    for text in (" the value", " of", "größer 😀", " x" * 9, "0123456789" * 9, " end"):
        proposer.propose([one])
        assert len(scribe.scratch[0]) <= 4 * 4 + 1 + 5
        one.tokens += bytewise().encode(text, add_special_tokens=False)
    assert len(scribe.committed[0]) > 1000


def test_one_pass_a_depth_for_all_requests() -> None:
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    proposer = bound(scribe, own, num_draft_tokens=3)
    kinds = [GREEDY, SAMPLED, GREEDY | {"max_tokens": 3}, SAMPLED]
    texts = ["the dog", "größer", "x", "日本語 and the quick"]
    trees = proposer.propose(
        [request(t, key, **o) for key, (t, o) in enumerate(zip(texts, kinds, strict=True))]
    )
    assert scribe.passes == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 3]]
    assert all(len(tree) > 1 for tree in trees)
    assert scribe.rows[4:] == [1] * 7, "what lies in scratch was run again"


def test_a_text_that_ends_within_a_character_is_not_drafted_for() -> None:
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    proposer = bound(scribe, own)
    ids = bytewise().encode("the 😀", add_special_tokens=False)
    one = request(ids[:-2])
    assert len(proposer.propose([one])[0]) == 1 and scribe.passes == []
    one.tokens += ids[-2:]
    assert len(proposer.propose([one])[0]) > 1
    assert own.decode(scribe.contexts[0]) == "[BOS]the 😀"


def test_a_token_that_would_have_been_written_with_the_last_one_is_not_proposed() -> None:
    """The target ended a token where its tokenizer does not: it did not mean what follows."""
    own, theirs = other("bytes"), other("merges")
    scribe = Scribe(len(own), follows(own, "e dog"))
    proposer = ForeignDraft(
        scribe, tokenizer=own, target_tokenizer=theirs, min_confidence=0.0, num_draft_tokens=3
    )
    target = SimpleNamespace(vocabulary=len(theirs))
    proposer.bind(target, lambda target, model: model)  # type: ignore[arg-type]
    ids = theirs.encode("and th", add_special_tokens=False)
    assert len(theirs.encode("and the", add_special_tokens=False)) <= len(ids)
    (tree,) = proposer.propose([request(ids)])
    assert len(tree) == 1 and proposer.survival == 0.0


def test_special_tokens_that_only_one_knows_are_not_read() -> None:
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    proposer = bound(scribe, own)
    the = bytewise().encode("the", add_special_tokens=False)
    proposer.propose([request([1, *the, 2, *the])])
    assert own.decode(scribe.contexts[0]) == "[BOS]thethe"
    scribe.says = lambda context: 0  # [BOS], which is no text
    (tree,) = proposer.propose([request(the, 1)])
    assert len(tree) == 1


def test_special_tokens_that_both_know_are_read_and_written() -> None:
    own = Shuffled(bytewise(), permutation(259))
    scribe = Scribe(259, lambda context: own.order[2])
    proposer = bound(scribe, own, num_draft_tokens=1)
    the = bytewise().encode("the", add_special_tokens=False)
    for key, options in enumerate((GREEDY, {"temperature": 0.1})):
        (tree,) = proposer.propose([request([1, *the], key, **options)])
        assert own.decode(scribe.contexts[-1]) == "<s>the"
        assert tree.tokens[1:] == [2]


def test_a_key_that_is_used_again_starts_afresh() -> None:
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    proposer = bound(scribe, own)
    one = request(LINES[0])
    proposer.propose([one])
    proposer.release(one)
    proposer.propose([request("fox")])
    assert own.decode(scribe.contexts[5]) == "[BOS]fox"


def test_the_drafts_context_is_not_overrun() -> None:
    own = other("bytes")
    scribe = Scribe(len(own), lambda context: 70)
    scribe.max_length = 24
    proposer = bound(scribe, own)
    one = request("x")
    for _ in range(30):
        proposer.propose([one])
        one.tokens.append(70)
    assert 20 <= max(map(len, scribe.contexts)) <= 24


def test_a_token_that_the_draft_has_no_row_for() -> None:
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    proposer = bound(scribe, own)
    scribe.vocabulary = max(own.encode("the", add_special_tokens=False))
    (tree,) = proposer.propose([request("the")])
    assert len(tree) == 1 and scribe.passes == []


def test_a_token_that_the_target_has_no_row_for() -> None:
    own, theirs = other("merges"), bytewise()
    last = theirs.encode("z", add_special_tokens=False)[0]
    scribe = Scribe(len(own), follows(own, "zero and"))
    proposer = bound(scribe, own, last, num_draft_tokens=1)
    for key, options in enumerate((GREEDY, SAMPLED)):
        (tree,) = proposer.propose([request("the", key, **options)])
        assert all(token < last for token in tree.tokens[1:])


def test_doubt_ends_a_draft() -> None:
    own = other("merges")
    unsure = bound(Scribe(len(own), lambda context: 70), own, min_confidence=1.0)
    one, two = request("the dog"), request("the dog", 1, **SAMPLED)
    for tree in unsure.propose([one, two]):
        assert len(tree) == 2


def test_a_draft_that_fails_stops_drafting_and_says_so() -> None:
    proposer = foreign("merges")
    with dp.LLM(target(), tokenizer=bytewise(), speculate=proposer) as llm:

        def broken(*args: Any) -> list[Output]:
            raise RuntimeError("out of order")

        proposer.runner.forward = broken
        outs = llm.generate(PROMPTS, params(bad_token_ids=ASCII, **GREEDY))
    assert [out.token_ids for out in outs] == plain("greedy", ASCII)
    assert all("out of order" in out.warnings[0] for out in outs)


@pytest.mark.parametrize(
    "options",
    [
        {"num_draft_tokens": 0},
        {"lookbehind": 0},
        {"min_confidence": 2.0},
        {"tokenizer": None},
        {"target_tokenizer": None},
    ],
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    good = {"tokenizer": bytewise(), "target_tokenizer": bytewise()}
    with pytest.raises(ValueError):
        ForeignDraft("somewhere", **{**good, **options})


# --- texts that are no text, and long ones ---


class Counted:
    """A tokenizer that counts what it decodes."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.decoded = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def decode(self, ids: Any, **options: Any) -> Any:
        self.decoded += len(ids)
        return self.inner.decode(ids, **options)


@pytest.mark.parametrize("byte", ["ÿ", "Ģ", None], ids=["ff", "80", "a replacement character"])
def test_broken_bytes_are_decoded_once(byte: str | None) -> None:
    """In every step the same work, whatever the text is and how long it has become."""
    more = bytewise().encode("\ufffd", add_special_tokens=False)
    more = more if byte is None else [bytewise().convert_tokens_to_ids(byte)]
    theirs = Counted(bytewise())
    own = other("merges")
    made = ForeignDraft(
        Scribe(len(own), lambda context: 70), tokenizer=own, target_tokenizer=theirs
    )
    target = SimpleNamespace(vocabulary=259)
    made.bind(target, lambda target, model: model)  # type: ignore[arg-type]
    one = request("the dog")
    counts = []
    for _ in range(400):
        before = theirs.decoded
        made.propose([one])
        counts.append(theirs.decoded - before)
        one.tokens += more
    assert max(counts[200:]) <= 1.5 * max(counts[40:80])


def test_a_prompt_beyond_the_drafts_room_is_not_read() -> None:
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    scribe.max_length = 24
    proposer = bound(scribe, own)
    one = request("the quick brown fox " * 40)
    for _ in range(3):
        assert len(proposer.propose([one])[0]) == 1
        one.tokens.append(70)
    assert scribe.passes == []
    assert one.warnings == ["a draft model drafts no further: its context ends at 24 tokens"]


def test_a_text_that_was_rolled_back_is_read_anew() -> None:
    """As a draft's drafter sees it, whose guesses the target rejects."""
    own = other("merges")
    scribe = Scribe(len(own), lambda context: 70)
    scribe.crop = lambda key, size: scribe.committed[key].__delitem__(slice(size, None))  # type: ignore[attr-defined]
    proposer = bound(scribe, own)
    one = request("the dog and the fox")
    shadow = one.shadow()
    for written in (" is it", " of it and of them all ", " x"):
        shadow.follow(one)
        shadow.tokens += bytewise().encode(" a guess that nobody wants", add_special_tokens=False)
        proposer.propose([shadow])
        shadow.follow(one)
        proposer.propose([shadow])
        told = own.decode(scribe.contexts[-5])
        assert told == own.decode(own.encode("[BOS]" + bytewise().decode(one.tokens)))
        one.tokens += bytewise().encode(written, add_special_tokens=False)


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_rules_from_outside_know_the_targets_ids(rule: str, kind: str) -> None:
    size = target().config.vocab_size

    def alternates(ids: Any, row: Any) -> Any:
        assert len(row) == size and int(ids.max()) < size
        row = row.clone()
        row[ids[-3:]] = -torch.inf
        return row

    texts = []
    for proposer in (None, foreign("merges")):
        with dp.LLM(target(), tokenizer=bytewise(), speculate=proposer, rule=rule) as llm:
            options = GREEDY if kind == "greedy" else SAMPLED
            requests = [llm.submit(prompt, params(**options))[0] for prompt in PROMPTS]
            for each in requests:
                each.history.process = alternates
            while not all(each.finished for each in requests):
                llm.engine.step()
        texts.append([each.output for each in requests])
    assert sum(each.stats.drafted for each in requests) > 0
    assert not any(each.warnings or each.error for each in requests)
    assert rule == "rejection" or texts[0] == texts[1]
