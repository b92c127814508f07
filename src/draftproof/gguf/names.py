"""What GGUF files call the tensors of each architecture, by transformers' names."""

from __future__ import annotations

import re
from collections.abc import Mapping

EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TOP = {EMBEDDINGS: "token_embd.weight", "model.norm.weight": "output_norm.weight"}
TOP |= {"model.norm.bias": "output_norm.bias", HEAD: "output.weight"}
TOP |= {"transformer.wte.weight": TOP[EMBEDDINGS], "transformer.wpe.weight": "position_embd.weight"}
TOP |= {f"transformer.ln_f.{leaf}": f"output_norm.{leaf}" for leaf in ("weight", "bias")}
LAYER = re.compile(r"(?:model\.layers|transformer\.h)\.(\d+)\.(.+)\.(weight|bias)")
LLAMA = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA = LLAMA | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
OTHERS: Mapping[str, Mapping[str, str]] = {  # where they are not Llama's
    "gemma2": GEMMA,
    "gemma3": GEMMA,
    "phi3": LLAMA | {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    "starcoder2": LLAMA | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    "gpt2": {
        "ln_1": "attn_norm",
        "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    },
}
FREQUENCIES = "rope_freqs.weight"  # what Llama 3 divides its rotary frequencies by
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"  # and Phi 3


def stored_name(name: str, architecture: str) -> str:
    """What a GGUF file calls a tensor of transformers' name; of others: nothing in any file."""
    if name in TOP:
        return TOP[name]
    layer = LAYER.fullmatch(name)
    found = OTHERS.get(architecture, LLAMA).get(layer[2]) if layer else None
    return f"blk.{layer[1]}.{found}.{layer[3]}" if layer and found else ""
