"""Staged speculation: n-gram lookup drafts for the draft, which drafts for the model."""

import draftproof as dp
from draftproof import bundled

prompt = "import unittest\n\n\nclass TestStack(unittest.TestCase):\n    def test"
params = dp.SamplingParams(temperature=0.7, seed=1, max_tokens=64)
llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=None)
(plain,) = llm.generate(prompt, params)
staged = dp.Staged(bundled.folder("draft"), dp.NGram())
llm.use(staged)
(out,) = llm.generate(prompt, params)
print(out.text)
print("identical:", out.token_ids == plain.token_ids)
print(f"{out.stats.tokens_per_step:.2f} tokens per pass of the model")
