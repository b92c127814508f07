"""Medusa heads on the bundled target; `draftproof train medusa` makes some for yours."""

import draftproof as dp
from draftproof import bundled
from draftproof.bundled.prompts import PROMPTS

llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=None)
params = dp.SamplingParams(max_tokens=96)
(plain,) = llm.generate(PROMPTS[0], params)

llm.use(dp.Medusa(bundled.folder("heads")))
(fast,) = llm.generate(PROMPTS[0], params)
print(fast.text)
print("identical:", fast.token_ids == plain.token_ids)
print(f"{fast.stats.tokens_per_step:.2f} tokens per pass of the model")
