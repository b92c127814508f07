"""Several methods at once: their trees are merged, and the likeliest nodes are verified."""

import draftproof as dp
from draftproof import bundled

prompt = "import unittest\n\n\nclass TestStack(unittest.TestCase):\n    def test"
params = dp.SamplingParams(temperature=0.7, seed=1, max_tokens=64)
llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=None)
(plain,) = llm.generate(prompt, params)
both = dp.Hybrid([dp.SuffixAutomaton(), dp.DraftModel(bundled.folder("draft"))], max_nodes=16)
llm.use(both)  # a plain list of methods does the same without a budget of nodes
(out,) = llm.generate(prompt, params)
print(out.text)
print("identical:", out.token_ids == plain.token_ids)
print(f"{out.stats.tokens_per_step:.2f} tokens per pass of the model")
