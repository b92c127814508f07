"""What to draft is decided in every step by what it brings and what it costs."""

import draftproof as dp
from draftproof import bundled

prompt = "class Stack:\n    def push(self, item):\n        self.items.append(item)\n\n    def p"
params = dp.SamplingParams(max_tokens=96)
llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=None)
(plain,) = llm.generate(prompt, params)
# "auto" has look-ups alone; here it may ask a draft model too.
llm.use(dp.Auto("ngram", "suffix", dp.DraftModel(bundled.folder("draft"))))
(out,) = llm.generate(prompt, params)
print(out.text)
print("identical:", out.token_ids == plain.token_ids)
for name, share in out.stats.decisions.sources.items():
    print(f"{name}: {share.accepted} of {share.used} drafted tokens accepted")
print("plain steps, by reason:", out.stats.decisions.plain_steps)
