"""A draft in int8 for a target in full precision; needs the native kernels."""

import foretoken as ft
from foretoken import native
from foretoken.demo import bundled
from foretoken.demo.prompts import PROMPTS

llm = ft.LLM(bundled("target"), dtype="float32")
params = ft.SamplingParams(max_tokens=96)
(plain,) = llm.generate(PROMPTS[0], params)

if native.found() is None:
    print("no native kernels on this machine: quantize='int8' would be refused")
else:
    llm.use(ft.DraftModel(bundled("draft"), quantize="int8"))
    (fast,) = llm.generate(PROMPTS[0], params)
    print(fast.text)
    print("identical:", fast.token_ids == plain.token_ids)
    print(f"{fast.stats.tokens_per_step:.2f} tokens per pass of the model")
