"""Early exit: the first half of the model's layers drafts for the whole of it.

A drafted token costs half a pass here, which eats the gain: this pays for models that were trained
to exit early, after fewer layers.
"""

import draftproof as dp
from draftproof import bundled

prompt = "import unittest\n\n\nclass TestStack(unittest.TestCase):\n    def test"
params = dp.SamplingParams(max_tokens=64)
llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=None)
(plain,) = llm.generate(prompt, params)
layers = llm.runner.layers // 2
llm.use(dp.EarlyExit(layers, min_confidence=0.0))
(out,) = llm.generate(prompt, params)
print(out.text)
print("identical:", out.token_ids == plain.token_ids)
print(f"{out.stats.tokens_per_step:.2f} tokens per pass of the model, with {layers} layers first")
