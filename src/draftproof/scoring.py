"""What a step asks of the runner for a turn, and what becomes of the part of a prompt in it.

Where the log-probabilities of a prompt are wanted, a slice of it runs as a chain of drafts that is
kept whole: so every token has its row, and the runner knows nothing of it. Does not know where
drafts come from.
"""

from __future__ import annotations

from draftproof.drafts import Drafts
from draftproof.runners.base import Output, Runner, Work
from draftproof.scheduler import Turn
from draftproof.tree import TokenTree


def work(turn: Turn, tree: TokenTree | None, read: bool) -> Work:
    """The turn's part of a pass. read: the drafter sees the states of all committed tokens."""
    request, brought = turn.request, turn.request.encoder_input
    if _scored(turn, tree):
        return Work(request.key, [], TokenTree.chain(turn.new), encoder_input=brought)
    greedy, draw = request.argmax_is_enough, request.draw
    return Work(
        request.key, turn.new, tree, greedy=greedy, read=read, encoder_input=brought, draw=draw
    )


def done(
    turn: Turn, tree: TokenTree | None, output: Output, runner: Runner, drafts: Drafts
) -> None:
    """The prompt's part of a pass is done: it is shown to the drafter, and scored where wanted."""
    request, states, path = turn.request, output.read, range(0)
    if _scored(turn, tree):
        try:
            request.score(runner.cached(request.key), output.logits)
        except Exception as error:  # a row that is not finite
            request.fail(error)
        states, path = output.hidden, range(len(turn.new))
        runner.keep(request.key, path)
    drafts.observe(request, runner.cached(request.key), states, path)


def _scored(turn: Turn, tree: TokenTree | None) -> bool:
    return tree is None and turn.request.scores
