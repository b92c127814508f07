"""Trees against the same questions answered by following parents one node at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftproof.tree import TokenTree, merge
from oracles import path, sequence, trees


@given(trees())
def test_depths_paths_children_and_histories(tree):
    for i in range(len(tree)):
        assert tree.path(i) == path(tree, i)
        assert tree.depths[i] == len(path(tree, i)) - 1
        assert [tree.tokens[0], *tree.path_tokens(i)] == list(sequence(tree, i))
        assert list(tree.children(i)) == [c for c in range(len(tree)) if tree.parents[c] == i]


@given(trees())
def test_a_row_of_ancestors_is_a_path(tree):
    rows = tree.ancestors()
    assert rows.dtype == torch.bool and rows.shape == (len(tree), len(tree))
    for i in range(len(tree)):
        assert rows[i].nonzero().flatten().tolist() == path(tree, i)


@given(trees(max_nodes=5))
def test_a_chain_is_the_tree_in_which_each_node_follows_the_one_before(tree):
    assert tree.is_chain == (tree.depths == list(range(len(tree))))
    chain = TokenTree.chain(tree.tokens, scores=tree.scores)
    assert chain.is_chain and chain.tokens == tree.tokens and chain.scores == tree.scores
    assert chain.path(len(chain) - 1) == list(range(len(chain)))
    assert torch.equal(chain.ancestors(), torch.ones(len(chain), len(chain)).tril().bool())


@given(trees(), st.integers(0, 12))
def test_truncate_drops_what_is_too_deep_and_nothing_else(tree, max_depth):
    n = len(tree)
    tree = TokenTree(tree.tokens, tree.parents, torch.arange(n * 2.0).view(n, 2), tree.scores)
    cut = tree.truncate(max_depth)
    kept = [i for i in range(n) if tree.depths[i] <= max_depth]
    assert [sequence(cut, i) for i in range(len(cut))] == [sequence(tree, i) for i in kept]
    assert torch.equal(cut.laws, tree.laws[kept])
    assert cut.scores == (tree.scores and [tree.scores[i] for i in kept])
    assert cut.truncate(max_depth) is cut


@given(st.lists(trees(max_nodes=7), min_size=1, max_size=3))
def test_merge_is_the_union_of_token_sequences(many):
    many = [TokenTree([0, *t.tokens[1:]], t.parents, scores=t.scores) for t in many]
    union = merge(many)
    drafted = [(sequence(t, i), t.scores and t.scores[i]) for t in many for i in range(len(t))]
    nodes = [sequence(union, i) for i in range(len(union))]
    assert nodes == list(dict.fromkeys(s for s, _ in drafted))  # each once, as it first came
    assert union.laws is None
    if all(t.scores is not None for t in many):
        assert union.scores == [max(x for s, x in drafted if s == node) for node in nodes]
    else:
        assert union.scores is None


def test_merge_drops_laws():
    tree = TokenTree([0, 1, 1], [-1, 0, 0], torch.full((3, 2), 0.5))
    assert merge([tree]) == TokenTree([0, 1], [-1, 0])


@pytest.mark.parametrize(
    ("tokens", "parents", "laws", "scores"),
    [
        ([], [], None, None),
        ([1], [0], None, None),
        ([1, 2], [-1], None, None),
        ([1, 2], [-1, -1], None, None),  # a second root
        ([1, 2, 3], [-1, 2, 0], None, None),  # a parent after its child
        ([1, 2], [-1, 1], None, None),  # its own parent
        ([1, 2], [-1, 0], torch.ones(1, 4), None),
        ([1, 2], [-1, 0], torch.ones(2), None),
        ([1, 2], [-1, 0], None, [0.5]),
    ],
)
def test_what_is_no_tree_is_refused(tokens, parents, laws, scores):
    with pytest.raises(ValueError, match="a tree|in the tree"):
        TokenTree(tokens, parents, laws, scores)


def test_trees_of_different_roots_are_not_merged():
    with pytest.raises(AssertionError):
        merge([TokenTree.chain([1, 2]), TokenTree.chain([2, 2])])
