"""An encoder-decoder that mends code: drafts are looked up in what its encoder read."""

import draftproof as dp

DAMAGED = "def area(width, height)\n    retrun width * height"

plain = dp.LLM("bundled-mender", speculate=None)
llm = dp.LLM(plain, speculate=[dp.NGram(), dp.DraftModel("bundled-mender")])
(out,), (same,) = llm.generate(DAMAGED), plain.generate(DAMAGED)
assert out.token_ids == same.token_ids
print(out.text)
print(f"{out.stats.tokens_per_step:.2f} tokens per pass of the decoder")
