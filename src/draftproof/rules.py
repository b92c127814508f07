"""The three rules of acceptance by name: what each asks of the target's rows.

Knows who is asked, `picks`, and who accepts, `verify`; no engine, no method.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.picks import Laws, Picks
from draftproof.request import VERIFIER, Request
from draftproof.runners.base import Output
from draftproof.sampling import argmaxes
from draftproof.tree import TokenTree
from draftproof.verify import Ends, Typical, verify, verify_rejection, verify_typical

RULES = ("coupled", "rejection", "typical")
Rule = str | Typical


def checked(rule: Rule) -> Rule:
    """The rule of that name. Raises `ValueError`."""
    if not isinstance(rule, Typical) and rule not in RULES:
        raise ValueError(f"rule {rule!r} is unknown: use one of {', '.join(RULES)}")
    return Typical() if rule == "typical" else rule


def accept(rule: Rule, request: Request, tree: TokenTree, output: Output, ends: Ends) -> int | None:
    """Tells `ends` of every node that is accepted; the token behind the last, None behind an end.

    Raises what picking a token raises, `NoCandidate` for a row that nothing can be picked from.
    """
    if rule == "rejection":
        laws = Laws(request, tree, output.logits)
        return verify_rejection(tree, laws, request.generator(VERIFIER), ends)[1]
    if isinstance(rule, Typical):
        laws = Laws(request, tree, output.logits)
        return verify_typical(tree, laws, rule, ends, request.stop_ids)[1]
    return verify(tree, Picks(request, tree, output.logits, output.best), ends)[1]


def argmax_of(output: Output) -> Sequence[int]:
    """The target's argmax after every node; -1 where a row is not finite."""
    return output.best if output.best is not None else argmaxes(output.logits)


def broken(output: Output, node: int) -> bool:
    """Whether the row after a node holds NaN or +inf."""
    if not len(output.logits):
        return output.best is not None and output.best[node] < 0
    return not bool((output.logits[node] < float("inf")).all())
