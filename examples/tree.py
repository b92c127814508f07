"""A draft whose trees are fitted to what is accepted and to what passes cost here."""

import draftproof as dp
from draftproof import bundled
from draftproof.bundled.prompts import PROMPTS

llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=None)
params = dp.SamplingParams(temperature=0.7, seed=1, max_tokens=96)
(plain,) = llm.generate(PROMPTS[0], params)

draft = dp.DraftModel(bundled.folder("draft"), tree="auto")
llm.use(draft)
(fast,) = llm.generate(PROMPTS[0], params)
print(fast.text)
print("identical:", fast.token_ids == plain.token_ids)
print(f"{fast.stats.tokens_per_step:.2f} tokens per pass of the model")
print("children by ranks:", dict(draft.fit.widths))
