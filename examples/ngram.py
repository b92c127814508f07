"""N-gram lookup: no second model; pays where the answer repeats the prompt."""

import draftproof as dp
from draftproof import bundled

PROMPT = "import unittest\n\n\nclass TestStack(unittest.TestCase):\n    def test"

llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=dp.NGram(num_draft_tokens=8))
plain = dp.LLM(llm, speculate=None)
params = dp.SamplingParams(max_tokens=64)
(out,), (same,) = llm.generate(PROMPT, params), plain.generate(PROMPT, params)
print(out.text)
print(f"{out.stats.tokens_per_step:.2f} tokens per pass of the model")
print("identical:", out.token_ids == same.token_ids)
