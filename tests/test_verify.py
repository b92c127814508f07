"""The two rules: the walk against its oracle, the law by enumeration and by counting.

Every statistical test has negative controls: rules that are wrong in ways seen in the wild, which
the same test must reject.
"""

import random
from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from chi_square import chi_square_p
from draftproof.tree import TokenTree
from draftproof.verify import _draw, verify, verify_rejection
from oracles import best, iid, laws, model, several, trees, without_replacement

LENGTH = 3  # the joint law of the first three tokens is compared
BELOW = 1e-5  # a p-value that no right rule gives


class Asked(list):
    """A list that counts how often each node is asked for."""

    def __init__(self, rows):
        super().__init__(rows)
        self.counts = Counter()

    def __getitem__(self, node):
        self.counts[node] += 1
        return super().__getitem__(node)


# --- picks ---


@given(trees(), st.data())
def test_the_longest_path_of_picks_is_accepted(tree, data):
    texts = [tuple(tree.path_tokens(node)) for node in range(len(tree))]
    said = {text: data.draw(st.integers(0, 2)) for text in dict.fromkeys(texts)}
    picks = Asked([said[text] for text in texts])  # behind the same tokens the same pick
    path, bonus = verify(tree, picks)
    asked, picks = picks.counts, list(picks)
    assert path == oracles.longest_match(tree, picks)
    assert bonus == picks[path[-1]]
    assert set(asked.values()) == {1}
    for node in asked:  # only where the walk came
        way = tree.path(node)
        assert all(tree.tokens[c] == picks[u] for u, c in pairwise(way))


def test_the_deepest_of_repeated_siblings_wins_and_the_first_among_equals():
    tree = TokenTree([9, 1, 1, 2, 1, 2], [-1, 0, 0, 2, 0, 4])
    assert verify(tree, [1, 2, 2, 3, 2, 3]) == ([0, 2, 3], 3)


# --- the rejection rule: the walk ---


@st.composite
def cases(draw, vocabulary=4):
    """A tree with or without laws, the target's laws after its nodes, a seed."""
    tree = draw(trees(vocabulary, max_nodes=8))
    rows = st.lists(laws(vocabulary), min_size=len(tree), max_size=len(tree))
    claimed = draw(st.none() | rows.map(lambda q: torch.tensor(q, dtype=torch.float64)))
    return TokenTree(tree.tokens, tree.parents, claimed), draw(rows), draw(st.integers(0, 999))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@given(cases())
def test_the_walk_equals_its_oracle(case):
    tree, rows, seed = case
    coins = torch.rand(len(tree), generator=seeded(seed), dtype=torch.float64).tolist()
    p = Asked(torch.tensor(rows, dtype=torch.float64))
    path, bonus = verify_rejection(tree, p, seeded(seed))
    assert (path, bonus) == oracles.rejection_walk(tree, rows, coins)
    assert p.counts == dict.fromkeys(path, 1)
    assert all(rows[u][tree.tokens[c]] > 0 for u, c in pairwise(path))
    assert rows[path[-1]][bonus] > 0


@given(cases())
def test_a_one_hot_law_is_no_law(case):
    tree, rows, seed = case
    p = torch.tensor(rows, dtype=torch.float64)
    hot = torch.nn.functional.one_hot(torch.tensor(tree.tokens), 4).double()
    with_laws = TokenTree(tree.tokens, tree.parents, hot)
    without = TokenTree(tree.tokens, tree.parents)
    walked = verify_rejection(without, p, seeded(seed))
    assert verify_rejection(with_laws, p, seeded(seed)) == walked


@given(cases(), laws(), st.sampled_from([torch.float32, torch.float64]))
def test_the_laws_are_never_written_to_and_may_be_a_view(case, law, dtype):
    tree, _, seed = case
    p = torch.tensor(law, dtype=dtype).expand(len(tree), -1)
    before = p.clone(), None if tree.laws is None else tree.laws.clone()
    path, bonus = verify_rejection(tree, p, seeded(seed))
    assert (path, bonus) == verify_rejection(tree, before[0], seeded(seed))
    assert torch.equal(p, before[0])
    assert tree.laws is None or torch.equal(tree.laws, before[1])


@pytest.mark.parametrize("claimed", [[0.6, 0.6], None])
def test_where_rounding_leaves_nothing_the_law_stays(claimed):
    """Rounding, made large: q above p everywhere, or a one-hot draft of all there is."""
    p = torch.tensor([[0.5, 0.5] if claimed else [0.5, 0.0]]).expand(3, -1)
    q = torch.tensor([claimed] * 3) if claimed else None
    tree = TokenTree([1, 0, 0], [-1, 0, 0], q)
    seen = Counter()
    for seed in range(200):
        path, bonus = verify_rejection(tree, p, seeded(seed))
        seen[len(path), bonus] += 1
    tokens = {bonus for _, bonus in seen}
    assert tokens == ({0, 1} if claimed else {0})
    assert {length for length, _ in seen} == {1, 2}


@pytest.mark.parametrize("coin", [0.0, 0.3, 1 - 2**-53])  # the least and the most there is
def test_a_token_of_probability_0_is_not_drawn(coin):
    law = torch.tensor([0, 0, 0.1, 0, 0.2, 0, 0], dtype=torch.float64)  # need not sum to one
    assert _draw(law, coin) == (2 if coin < 1 / 3 else 4)


# --- the rejection rule: its law, by enumeration ---


@given(laws(), laws(), laws(), st.integers(1, 3))
def test_a_group_of_siblings_leaves_the_law_of_the_target(p, q, other, k):
    q, other = [q] * 4, [other] * 4
    for process in (iid(q), without_replacement(q), best(q), several([q, other, q])):
        assert oracles.group_law(p, process, k)[0] == pytest.approx(p, abs=1e-12)


@given(laws(), laws(), st.integers(1, 3))
def test_acceptance_is_what_the_papers_say(p, q, k):
    r, rejected = p, 1.0
    for _ in range(k):  # SpecInfer, i.i.d. siblings; k = 1: Leviathan, Theorem 3.5
        rejected *= 1 - sum(map(min, r, q))
        r = oracles.one_round(r, 0, q)[1]
    assert oracles.group_law(p, iid([q] * 4), k)[1] == pytest.approx(1 - rejected, abs=1e-12)
    top = sorted(range(4), key=lambda t: -q[t])[:k]
    assert oracles.group_law(p, best([q] * 4), k)[1] == pytest.approx(
        sum(p[t] for t in top), abs=1e-12
    )
    # Sequoia's cover property: every token was proposed
    assert oracles.group_law(p, without_replacement([q] * 4), 4)[1] == pytest.approx(1, abs=1e-12)


# --- right and wrong ways to draw and to accept: enumerated, and counted with the real verifier ---


class Case(NamedTuple):
    target: oracles.Model
    process: oracles.Process
    expansion: list[int]
    rounds: object = oracles.one_round
    verifier: object = verify_rejection


def resample_from_p(r, t, q):
    """The popular mistake: after a rejection, p again instead of the residual."""
    return oracles.one_round(r, t, q)[0], r


def verify_resampling_p(tree, p, rng):
    """The same as a verifier, for chains."""
    path = [0]
    for c in range(1, len(tree)):
        t = tree.tokens[c]
        if torch.rand((), generator=rng) * tree.laws[c, t] >= p[c - 1][t]:
            break
        path.append(c)
    return path, torch.multinomial(p[path[-1]], 1, generator=rng).item()


P3, P4, P6 = model(3, 1), model(4, 1), model(6, 1)
Q3, Q4, Q6 = model(3, 2), model(4, 2), model(6, 2)
OTHER, PEAKED = model(4, 3), model(4, 5, peak=6.0)
RIGHT = {
    "chain of 1": Case(P6, iid(Q6), [1]),
    "chain of 2": Case(P4, iid(Q4), [1, 1]),
    "chain of 3": Case(P4, iid(PEAKED), [1, 1, 1]),
    "chain of 4": Case(P3, iid(Q3), [1, 1, 1, 1]),
    "i.i.d. (2,2,1)": Case(P4, iid(Q4), [2, 2, 1]),
    "i.i.d. (3)": Case(P4, iid(PEAKED), [3]),
    "without replacement (2,2,1)": Case(P4, without_replacement(Q4), [2, 2, 1]),
    "without replacement (3,1)": Case(P4, without_replacement(PEAKED), [3, 1]),
    "without replacement (2,2)": Case(P6, without_replacement(Q6), [2, 2]),
    "two drafts (2,2)": Case(P4, several([Q4, OTHER]), [2, 2]),
    "three drafts (3)": Case(P4, several([Q4, OTHER, PEAKED]), [3]),
    "one-hot (1,1)": Case(P3, best(Q3), [1, 1]),
    "one-hot (2,2,1)": Case(P6, best(Q6), [2, 2, 1]),
}
# deterministic siblings passed off as drawn
TOP = oracles.claiming(best(Q4), lambda siblings, last: [(t, Q4[last]) for t, _ in siblings])
FULL_Q = oracles.claiming(
    without_replacement(PEAKED), lambda s, last: [(t, PEAKED[last]) for t, _ in s]
)
DEDUPLICATED = oracles.claiming(iid(Q4), lambda s, _: list({t: (t, q) for t, q in s}.values()))
SORTED = oracles.claiming(iid(Q4), lambda s, _: sorted(s, key=lambda c: -c[1][c[0]]))
WRONG = {
    "resampled from p": Case(P4, iid(Q4), [1, 1], resample_from_p, verify_resampling_p),
    "top-k with p/q": Case(P4, TOP, [2]),
    "top-k with p/q (2,2,1)": Case(P4, TOP, [2, 2, 1]),
    "without replacement with the full q": Case(P4, FULL_Q, [3]),
    "a repeated sibling dropped": Case(P4, DEDUPLICATED, [3]),
    "siblings sorted by q": Case(P4, SORTED, [3]),
}


def enumerated(case):
    target, process, expansion, rounds, _ = case
    step = oracles.step_law
    return oracles.loop_law(lambda last: step(target, process, expansion, last, rounds), LENGTH)


def plain(case):
    return oracles.plain_law(case.target, LENGTH)


class Replayed(random.Random):
    """The draft's randomness, taken from a generator that is also the verifier's."""

    def __init__(self, generator):
        super().__init__(0)
        self.generator = generator

    def random(self):
        return torch.rand((), generator=self.generator, dtype=torch.float64).item()


def counted(case, n=5000, with_laws=True, shared=0):
    """The first tokens of n runs of the step loop.

    shared > 0 (wrong): both start from one seed in each step, the draft with number `shared`.
    """
    p_after = [torch.tensor(row, dtype=torch.float64) for row in case.target]
    generator = seeded(0)
    rng = Replayed(generator) if shared else random.Random(0)
    grower = oracles.Grower(case.process, case.expansion, rng)
    counts = Counter()
    for run in range(n):
        emitted = [0]
        while len(emitted) <= LENGTH:
            seed = run * LENGTH + len(emitted)
            if shared:
                generator.manual_seed(seed)
                for _ in range(shared - 1):
                    rng.random()
            tree = grower.tree(emitted[-1], with_laws)
            if shared:
                generator.manual_seed(seed)
            path, bonus = case.verifier(tree, [p_after[t] for t in tree.tokens], generator)
            emitted += [tree.tokens[i] for i in path[1:]] + [bonus]
        counts[tuple(emitted[1 : LENGTH + 1])] += 1
    return counts


@pytest.mark.parametrize("name", RIGHT)
def test_the_loop_has_the_law_of_plain_decoding(name):
    case = RIGHT[name]
    assert enumerated(case) == pytest.approx(plain(case), abs=1e-12)
    counts = counted(case, with_laws="one-hot" not in name)
    assert chi_square_p(counts, plain(case)) > BELOW


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found(name):
    case = WRONG[name]
    assert oracles.total_variation(enumerated(case), plain(case)) > 0.005
    counts = counted(case)
    assert chi_square_p(counts, plain(case)) < BELOW
    assert chi_square_p(counts, enumerated(case)) > BELOW  # wrong just as the oracle says


@pytest.mark.parametrize("shared", [1, 2])  # the bonus from the draft's number, or its coin
def test_noise_shared_with_the_draft_is_found(shared):
    case = Case(P4, iid(Q4), [1])
    assert chi_square_p(counted(case), plain(case)) > BELOW
    assert chi_square_p(counted(case, shared=shared), plain(case)) < BELOW
