"""A draft model writes ahead; the tokens are those of the target alone."""

import draftproof as dp
from draftproof import bundled

params = dp.SamplingParams(temperature=0.7, seed=1, max_tokens=64)
prompt = "import unittest\n\n\nclass TestStack(unittest.TestCase):\n    def test"
(plain,) = dp.LLM(bundled.folder("target"), dtype="float32", speculate=None).generate(
    prompt, params
)
llm = dp.LLM(
    bundled.folder("target"), dtype="float32", speculate=dp.DraftModel(bundled.folder("draft"))
)
(fast,) = llm.generate(prompt, params)
print(fast.text)
print("identical:", fast.token_ids == plain.token_ids)
print(f"{fast.stats.tokens_per_step:.2f} tokens per pass of the model")
