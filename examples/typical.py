"""Typical acceptance: faster at high temperature, and lossy."""

import draftproof as dp
from draftproof import bundled
from draftproof.bundled.prompts import PROMPTS

params = dp.SamplingParams(temperature=1.0, seed=1, max_tokens=96)
for rule in ("coupled", dp.Typical(epsilon=0.09, delta=0.3)):
    draft = dp.DraftModel(bundled.folder("draft"))
    llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=draft, rule=rule)
    (out,) = llm.generate(PROMPTS[0], params)
    print("lossy" if out.stats.lossy else "exact")
    print(out.text)
    print(f"{out.stats.tokens_per_step:.2f} tokens per pass of the model")
