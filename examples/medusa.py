"""Medusa heads, fitted here and now to one text of the target: a demonstration, not a training."""

import torch
from transformers import AutoModelForCausalLM

import foretoken as ft
from foretoken.checkpoints import Heads
from foretoken.demo import bundled
from foretoken.demo.prompts import PROMPTS
from foretoken.proposers.medusa import Medusa

llm = ft.LLM(bundled("target"), dtype="float32")
params = ft.SamplingParams(max_tokens=96, ignore_eos=True)
(plain,) = llm.generate(PROMPTS[0], params)

model = AutoModelForCausalLM.from_pretrained(bundled("target"), dtype=torch.float32)
ids = torch.tensor(plain.prompt_token_ids + plain.token_ids)
h = model.model(ids[None]).last_hidden_state[0, :-4].detach()  # (N, d)
# Head k guesses the k-th token after the next, here by ridge regression on its hidden state.
labels = [torch.nn.functional.one_hot(ids[k + 1 :][: len(h)], 8192).float() for k in (1, 2, 3)]
fit = torch.linalg.solve(h.T @ h + 10 * torch.eye(h.shape[1]), h.T)  # (d, N)
outputs = torch.stack([20 * (fit @ label).T for label in labels])  # (K, V, d)
heads = Heads(torch.zeros(3, 1, h.shape[1], h.shape[1]), None, outputs, vocab_size=8192)

llm.use(Medusa(heads, nodes=8))
(fast,) = llm.generate(PROMPTS[0], params)
print(fast.text)
print("identical:", fast.token_ids == plain.token_ids)
print(f"{fast.stats.tokens_per_step:.2f} tokens per pass of the model")
