"""A draft in int8 for a target in full precision; needs the native kernels."""

import draftproof as dp
from draftproof import bundled, native
from draftproof.bundled.prompts import PROMPTS

llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=None)
params = dp.SamplingParams(max_tokens=96)
(plain,) = llm.generate(PROMPTS[0], params)

if native.found() is None:
    print("no native kernels on this machine: quantize='int8' would be refused")
else:
    llm.use(dp.DraftModel(bundled.folder("draft"), quantize="int8"))
    (fast,) = llm.generate(PROMPTS[0], params)
    print(fast.text)
    print("identical:", fast.token_ids == plain.token_ids)
    print(f"{fast.stats.tokens_per_step:.2f} tokens per pass of the model")
