"""A tokenizer of bytes, and a random model over its tokens."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import tiny

MAX = 96  # context of the model below


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes: 0 pad, 1 bos, 2 end of text, 3.. the bytes. Random output is broken UTF-8."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2}
    vocabulary |= {c: i + 3 for i, c in enumerate(alphabet)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    return fast


@cache
def model() -> PreTrainedModel:
    return tiny.model("llama", vocab_size=len(tokenizer()), max_position_embeddings=MAX)
