"""One keyword in code that uses transformers: the same tokens, sooner."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import draftproof as dp
from draftproof import bundled

model = AutoModelForCausalLM.from_pretrained(bundled.folder("target"), dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(bundled.folder("target"))
inputs = tokenizer("import argparse\n\ndef main():\n", return_tensors="pt")
options = {"max_new_tokens": 96, "do_sample": False, "pad_token_id": 0}

fast = dp.custom_generate(speculate=dp.DraftModel(bundled.folder("draft")))
ours = model.generate(**inputs, **options, custom_generate=fast)
theirs = model.generate(**inputs, **options)

print(tokenizer.decode(ours[0]))
print("identical:", torch.equal(ours, theirs))
