"""SpecInfer: every draft grows a whole tree; here one draft, which branches twice."""

import draftproof as dp
from draftproof import bundled

prompt = "import unittest\n\n\nclass TestStack(unittest.TestCase):\n    def test"
params = dp.SamplingParams(temperature=0.7, seed=1, max_tokens=64)
llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=None)
(plain,) = llm.generate(prompt, params)
drafts = dp.SpecInfer([bundled.folder("draft")], expansion=(3, 2, 1, 1))  # 3 + 6 + 6 + 6 nodes
llm.use(drafts)
(out,) = llm.generate(prompt, params)
print(out.text)
print("identical:", out.token_ids == plain.token_ids)
print(f"{out.stats.tokens_per_step:.2f} tokens per pass of the model")
