"""N-gram lookup: no second model; pays where the answer repeats the prompt."""

import draftproof as dp
from draftproof import bundled

llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=dp.NGram(num_draft_tokens=8))
(out,) = llm.generate(
    "import unittest\n\n\nclass TestStack(unittest.TestCase):\n    def test",
    dp.SamplingParams(max_tokens=64),
)
print(out.text)
print(f"{out.stats.tokens_per_step:.2f} tokens per pass of the model")
