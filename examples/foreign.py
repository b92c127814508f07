"""A draft with another tokenizer: here the bundled one without the later half of its merges."""

import json

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import draftproof as dp
from draftproof import bundled
from draftproof.bundled.prompts import PROMPTS

ours = AutoTokenizer.from_pretrained(bundled.folder("target"))
spec = json.loads(ours.backend_tokenizer.to_str())
spec["model"]["merges"] = spec["model"]["merges"][: len(spec["model"]["merges"]) // 2]
coarse = Tokenizer.from_str(json.dumps(spec))
theirs = PreTrainedTokenizerFast(tokenizer_object=coarse, bos_token=ours.bos_token)

llm = dp.LLM(bundled.folder("target"), dtype="float32", speculate=None)
params = dp.SamplingParams(temperature=0.7, seed=1, max_tokens=96)
(plain,) = llm.generate(PROMPTS[0], params)

draft = dp.ForeignDraft(bundled.folder("draft"), tokenizer=theirs, target_tokenizer=ours)
llm.use(draft)
(fast,) = llm.generate(PROMPTS[0], params)
print(fast.text)
print("identical:", fast.token_ids == plain.token_ids)
print(f"{draft.survival:.0%} of the tokens drafted could be proposed")
print(f"{fast.stats.tokens_per_step:.2f} tokens per pass of the model")
