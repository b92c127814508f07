"""Shows again what `draftproof certify` found, by the same comparisons.

It prints DIFFERENT where that is so, and what differs.
"""

import draftproof as dp
from draftproof import methods
from draftproof.certify import identity, law, sampled

print("auto, coupled, greedy, prompt 0, token 5: draft drafts no further: AttributeError: 'Deepening' object has no attribute '_gain'")
llm = dp.LLM('/work/main/src/draftproof/bundled/models/target', speculate=None, **{'runner': 'auto', 'dtype': 'auto', 'device': 'auto', 'threads': 1, 'revision': None, 'trust_remote_code': False})
speculate = methods.named('auto', {'draft': '/work/main/src/draftproof/bundled/models/draft'}, **{})
prompts = [[0, 1924, 1938, 1212, 617, 336, 5963, 798, 408, 1057, 3565, 4656, 14, 199, 580, 199, 199, 3, 376, 564, 261, 1938, 722, 737, 1687, 286, 744, 372, 274, 450, 2452, 4103, 317, 3259, 408, 3642, 798, 199, 3, 3099, 14, 221, 4541, 264, 312, 2953, 325, 336, 5963, 798, 3034, 4103, 2832, 4277, 5802, 199, 3, 737, 1728, 14, 199, 3, 2901, 791, 4614, 791, 798, 939, 2012, 4125, 4103, 7289, 737, 1728, 325, 1999, 199, 3, 3099, 14, 199, 199, 603, 652, 199, 199, 457, 8141, 390, 354, 8, 967, 289, 199], [0, 1924, 1938, 1212, 617, 336, 5963, 798, 408, 1057, 3565, 4656, 14, 199, 580, 199, 199, 3, 376, 564, 261, 1938, 722, 737, 1687, 286, 744, 372, 274, 450, 2452, 4103, 317, 3259, 408, 3642, 798, 199, 3, 3099, 14, 221, 4541, 264, 312, 2953, 325]]
settings = [{'max_tokens': 5, 'seed': 0}, {'max_tokens': 4, 'seed': 1}]
params = [dp.SamplingParams(**one) for one in settings]
bound = identity.Bound(0.0, 0.0, None, 0.0)  # how far logits may be off

drafting = dp.LLM(llm, speculate=speculate, rule='coupled', max_batch=len(prompts))
refs = identity.references(llm, prompts, params, lambda: None)  # plainly, one by one
ways = [(f"prompt {ref.number} alone", [ref]) for ref in refs] + [("all in one batch", refs)]
for way, group in ways:
    outcome = identity.examine(drafting, group, bound)
    print(way, "DIFFERENT" if outcome.defects else "nothing differs")
    for one in outcome.defects:
        print("  prompt", one.number, "token", one.position, one.cause)
        print("    plain", one.plain, "here", one.other, "logits off by", one.difference)
