"""A suffix automaton: also drafts from what earlier requests wrote; no second model."""

import draftproof as dp
from draftproof import bundled

prompt = "import unittest\n\n\nclass TestStack(unittest.TestCase):\n    def test"
params = dp.SamplingParams(temperature=0.7, seed=1, max_tokens=64)
llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=dp.SuffixAutomaton())
(first,) = llm.generate(prompt, params)
(again,) = llm.generate(prompt, params)  # the same answer, found in the first one
print(again.text)
print("identical:", again.token_ids == first.token_ids)
for what, out in (("first", first), ("again", again)):
    print(f"{what}: {out.stats.tokens_per_step:.2f} tokens per pass of the model")
