"""Lookahead decoding: the model itself guesses n-grams beside what it verifies."""

import draftproof as dp
from draftproof import bundled

prompt = "import unittest\n\n\nclass TestStack(unittest.TestCase):\n    def test"
params = dp.SamplingParams(seed=1, max_tokens=64)
llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=None)
(plain,) = llm.generate(prompt, params)
lookahead = dp.Lookahead(window=5, ngram=4, guesses=5)
llm.use(lookahead)
(out,) = llm.generate(prompt, params)
print(out.text)
print("identical:", out.token_ids == plain.token_ids)
print(f"{out.stats.tokens_per_step:.2f} tokens per pass of the model")
