"""The loop: schedule, propose, run, verify, commit.

Knows runners, proposers and requests by their protocols only; which method drafts, which model
runs, and what text is are other files' business. Any number of threads may use it: one steps at a
time, for the requests of all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence

import torch

from draftproof import rules, scoring
from draftproof.drafting.base import Proposer
from draftproof.drafts import Drafts
from draftproof.request import Request
from draftproof.runners import costs
from draftproof.runners.base import Output, Runner, Work, begin, behind, expect, fork, hand_over
from draftproof.scheduler import Scheduler, Turn
from draftproof.tree import TokenTree
from draftproof.turns import Turns
from draftproof.verify import Typical
from draftproof.writing import Rule


class Engine:
    """Writes requests, several at once, one step at a time."""

    def __init__(
        self,
        runner: Runner,
        proposer: Proposer | None = None,
        *,
        rule: str | Typical | Rule = "coupled",
        scheduler: Scheduler,
        vocabulary: int | None = None,
    ) -> None:
        self.rule = rules.named(rule)  # of requests to come
        self.runner, self.scheduler = runner, scheduler
        self.vocabulary = vocabulary
        self.turns = Turns(self._release_ended, lambda: self._aborted)
        self._aborted: deque[Request] = deque()  # and not released yet
        self._ended: list[Request] = []  # and not reported by a step yet
        self.closed = False
        self.use(proposer)

    def use(self, proposer: Proposer | None) -> None:
        """Draft with `proposer`, which is bound already, from the next step on."""
        self.drafts = Drafts(proposer, self.vocabulary, costs.of(self.runner))
        self.scheduler.shares = getattr(self.runner, "prefix_cache", False) and self.drafts.shares

    @property
    def proposer(self) -> Proposer | None:
        return self.drafts.proposer

    def add(self, request: Request) -> None:
        """Let `request` run as soon as there is a place. Raises `ValueError` behind `close`."""
        self.check_usable()
        if not request.finished:
            request.added = True
            self.scheduler.add(request)

    def abort(self, request: Request) -> None:
        """End `request`, keeping what it wrote; nothing happens if it has ended.

        At once; but while a step runs, of this thread or another, at its end.
        """
        if not request.finished:
            request.aborted = True
            self._aborted.append(request)
            self.turns.tidy()

    def step(self) -> list[Request]:
        """One pass of the target; returns the requests that wrote or ended, aborted ones too."""
        return self.turns.alone(self._step) or []

    def run(self, requests: Sequence[Request]) -> Generator[Request]:
        """Until all have ended, each whenever it wrote or ended; closed earlier, aborts the rest.

        Requests that were not added are. Steps, or waits for what another thread's steps bring.
        """
        news, mine = deque[Request](), list[Request]()
        try:
            for request in requests:
                if request.listener is not None or not self.scheduler.may_run(request):
                    raise ValueError("a request is run already, or by another LLM: make another")
                mine.append(request)
                request.listener = news.append
                request.together = requests if len(requests) > 1 else ()
                if not request.added:
                    self.add(request)
            left = {request.key for request in requests if not request.finished}
            while left:
                while news:
                    request = news.popleft()
                    if request.key not in left:
                        continue
                    if request.finished:
                        left.discard(request.key)
                    yield request
                if left:
                    self._bring(news, requests)
        finally:  # an error or an interrupt leaves nothing running
            for request in mine:
                self.abort(request)

    def close(self) -> None:
        """Abort every request, and take no more."""
        self.closed = True
        self.turns.alone(self._abort_all)

    def check_usable(self) -> None:
        """Raises `ValueError` behind `close`, and in a forked child."""
        if self.closed:
            raise ValueError("this LLM is closed: make a new one")
        self.turns.check_process()

    def check(self) -> None:
        """Asserts what must hold between two steps."""
        running, waiting = self.scheduler.running, self.scheduler.waiting
        everybody = [*running, *waiting]
        assert not self.turns.taken and not self._aborted
        assert len({id(request) for request in everybody}) == len(everybody)
        assert len(running) <= self.scheduler.max_batch
        assert not any(request.finished or request.torn for request in running)
        for request in running:
            assert request.history.length == len(request.output)
        if (check := getattr(self.runner, "check", None)) is not None:
            check({request.key for request in running})

    def _bring(self, news: deque[Request], requests: Sequence[Request]) -> None:
        """Something new: by a step of this thread, or by those of the one that has the turn."""
        self.turns.alone(self._step, enough=lambda: news)
        if not news:  # an interrupt may have come between an end and the news of it
            news.extend(request for request in requests if request.finished)

    @torch.inference_mode()
    def _step(self) -> list[Request]:
        self._release_ended()
        for request in [*self.scheduler.waiting] if self.closed else ():  # added meanwhile
            request.finish("abort")
            self._end(request)
        for request in self.scheduler.running:
            request.mend()
        moved: list[Request] = []
        turns = self.scheduler.next_turns(self.runner.cached, self._begin, self._fork)
        trees = self.drafts.trees(turns, len(self.scheduler.running))
        self._run(turns, trees, moved)
        self._release_ended()
        moved += [request for request in self._ended if request not in moved]
        self._ended.clear()
        return moved

    def _begin(self, request: Request) -> None:
        try:
            expect(self.runner, request.key, request.likely)
            if not (self.drafts.observes or request.scores):  # who want to see every row
                begin(self.runner, request.key, request.tokens, request.salt)
                took = self.runner.cached(request.key)  # of what was resumed too
                request.stats.cached = min(took, len(request.prompt))
        except Exception as error:
            request.fail(error)

    def _fork(self, request: Request, sibling: Request) -> bool:
        """The prompt as another completion of it has read it."""
        length = len(request.prompt) - 1
        took = self.drafts.shares and fork(self.runner, request.key, sibling.key, length)
        request.stats.cached = length if took else 0
        return took

    def _run(
        self, turns: Sequence[Turn], trees: Sequence[TokenTree | None], moved: list[Request]
    ) -> None:
        """A pass over all, or, where it fails, over one after another: one's fault is its own."""
        if not turns:
            return
        work = [scoring.work(*one, self.drafts.observes) for one in zip(turns, trees, strict=True)]
        try:
            began = time.perf_counter()
            outputs = self.runner.forward(work, self.drafts.taps)
        except Exception as error:
            if len(turns) > 1:
                for turn, tree in zip(turns, trees, strict=True):
                    self._run([turn], [tree], moved)
            elif trees[0] is not None and len(trees[0]) > 1:  # its drafts may be what does not fit
                self._run(turns, [self.drafts.undrafted(turns[0].request, trees[0])], moved)
            else:
                turns[0].request.fail(error)
                self._end(turns[0].request)
                moved.append(turns[0].request)
            return
        self.drafts.passed(turns, [*map(Work.rows, work)], time.perf_counter() - began)
        with behind(self.runner):
            for turn, tree, output in zip(turns, trees, outputs, strict=True):
                scoring.done(turn, tree, output, self.runner, self.drafts)
                if tree is not None:
                    self._commit(turn, tree, output)
                    moved.append(turn.request)

    def _commit(self, turn: Turn, tree: TokenTree, output: Output) -> None:
        """Verify a tree and write what is accepted, token by token; commit what was written."""
        request, before, last = turn.request, len(turn.request.tokens), 0

        def write(node: int) -> bool:
            nonlocal last
            ended = request.write(tree.tokens[node], output.logits, tree.parents[node], True)
            last = node
            return ended

        try:
            if request.aborted:
                request.finish("abort")
            else:
                bonus = request.rule.accept(request, tree, output, write)
                if bonus is not None:
                    request.write(bonus, output.logits, last)
        except Exception as error:
            # A draft that overflowed gets into rows that may not see it: 0 times infinity is NaN.
            # So the row is asked for again, alone.
            request.again = len(tree) > 1 and not request.finished and rules.broken(output, last)
            if not request.again:
                request.fail(error)
        except BaseException:  # an interrupt, between any two lines; not the request's doing
            request.again = not request.torn
            if request.torn:
                request.finish("abort")
            raise
        finally:
            self._keep(turn, tree, tree.path(last), len(request.tokens) - before, output)

    def _keep(
        self, turn: Turn, tree: TokenTree, path: list[int], written: int, output: Output
    ) -> None:
        """Commit the part of the path behind which `written` tokens follow; release what ended."""
        request = turn.request
        try:
            request.commit(tree, path, written)
            if request.finished:
                return
            if written:
                self.runner.keep(request.key, path[:written])
                done = self.runner.cached(request.key)
                self.drafts.observe(request, done, output.hidden, path[:written])
            elif turn.new:  # what was read beside the drafts is as broken as the row
                self.runner.crop(request.key, len(request.tokens) - 1 - len(turn.new))
            again = request.again
            request.feedback = None if again else self.drafts.feedback(tree, path, output)
            if request.listener is not None:
                request.listener(request)
        except Exception as error:
            request.fail(error)
        except BaseException:
            request.finish("abort")
            raise
        finally:
            if request.finished:
                self._end(request)

    def _end(self, request: Request) -> None:
        """Its place, its row and what its drafter holds are free at once."""
        heir = self.scheduler.heir(request)
        inherits = heir is not None and self._hand_over(request, heir)
        if not inherits:
            self.runner.free(request.key)
        self.drafts.release(request)
        if heir is not None and inherits:
            self.scheduler.promote(heir, request)
        if request.listener is not None:
            request.listener(request)
        else:
            self._ended.append(request)
        self.scheduler.remove(request)  # last: until then all this can be done again

    def _hand_over(self, request: Request, heir: Request) -> bool:
        """The prompt that both complete need not be read again where one row follows the other."""
        length = len(request.prompt) - 1
        if self.drafts.observes or not length or self.runner.cached(request.key) < length:
            return False
        took = hand_over(self.runner, request.key, heir.key, length)
        heir.stats.cached = length if took else 0
        return took

    def _abort_all(self) -> None:
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            self.abort(request)

    def _release_ended(self) -> None:
        """What was aborted, and what an interrupt left behind."""
        while self._aborted:
            request = self._aborted[0]
            if not request.finished:
                request.finish("abort")
                self._end(request)
            self._aborted.popleft()
        for request in [each for each in self.scheduler.running if each.finished]:
            self._end(request)
