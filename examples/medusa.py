"""Medusa heads on the bundled target; `foretoken train medusa` makes some for yours."""

import foretoken as ft
from foretoken.demo import bundled
from foretoken.demo.prompts import PROMPTS

llm = ft.LLM(bundled("target"), dtype="float32")
params = ft.SamplingParams(max_tokens=96)
(plain,) = llm.generate(PROMPTS[0], params)

llm.use(ft.Medusa(bundled("heads")))
(fast,) = llm.generate(PROMPTS[0], params)
print(fast.text)
print("identical:", fast.token_ids == plain.token_ids)
print(f"{fast.stats.tokens_per_step:.2f} tokens per pass of the model")
