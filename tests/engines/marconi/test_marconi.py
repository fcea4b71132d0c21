"""The artifact's rows, its own small test, and examples worked out by hand."""

import random

from cachesim.engines.marconi.options import MarconiOptions
from cachesim.engines.marconi.rules import ARTIFACT, PAPER
from cachesim.engines.marconi.tree import Costs, Tree
from cachesim.units import as_tokens

STATE = 24 * (4096 * 128 * 2 + (2 * 4096 + 2 * 128) * 4 * 2)
TOKEN = 4 * 2 * 4096 * 2

# The artifact's toy example: six prompts about two universities, with words for tokens.
WORDS = (
    "Princeton University is a beautiful place",
    "Princeton University is a good place",
    "Princeton University is a big thing",
    "Princeton is a town",
    "Harvard University is",
    "Princeton University is a big deal",
)


def test_the_small_test_of_the_artifact() -> None:
    tree = Tree(MarconiOptions(policy="lru"), ARTIFACT)
    told = []
    numbers: dict[str, int] = {}
    for tokens in [
        as_tokens([numbers.setdefault(word, len(numbers)) for word in text.split()])
        for text in WORDS
    ]:
        match = tree.look_up(tokens)
        told.append((match.reusable, match.agreed, match.branches))
        tree.insert(tokens, tokens)
    assert [
        (0, 0, False),
        (0, 4, True),
        (4, 4, False),
        (0, 1, True),
        (0, 0, False),
        (4, 5, True),
    ] == told


def test_the_artifact_goes_on_below_an_edge_that_does_not_agree() -> None:
    """With `[1..5]` and its child `[9, 9]`, the query `[1, 2, 3, 9, 9, 7]` gets `[9, 9]`."""
    for rules, reusable in ((ARTIFACT, 2), (PAPER, 0)):
        tree = Tree(MarconiOptions(), rules)
        for tokens in ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 9, 9)):
            tree.insert(as_tokens(tokens), as_tokens(tokens))
        assert reusable == tree.match(as_tokens((1, 2, 3, 9, 9, 7))).reusable


def test_what_a_state_weighs() -> None:
    costs = Costs(MarconiOptions())
    assert STATE == costs.state_bytes() == 26_787_840
    assert TOKEN == costs.keys_bytes(1) == 65_536
    assert 408 == costs.state_bytes() // costs.keys_bytes(1)


def test_an_inner_node_loses_its_state_and_not_its_tokens() -> None:
    """Two nodes on one path: the older inner one goes first, and its tokens stay in the child."""
    tree = Tree(MarconiOptions(policy="weighed", capacity_bytes=10 * STATE), PAPER)
    short, long = as_tokens(range(20)), as_tokens(range(30))
    tree.insert(short, short)
    tree.insert(long, long)
    merged: list[int] = []
    tree.on_merged = lambda node: merged.append(node.end)

    tree.evict(1)

    assert [20] == merged
    assert (1, 30) == (tree.nodes, tree.tokens)
    assert (0, (20, 0)) == (tree.match(short).reusable, tree.agreed(short))


def test_the_weight_is_tuned_when_enough_was_seen() -> None:
    rng = random.Random(7)
    tree = Tree(MarconiOptions(capacity_bytes=8 * STATE, bootstrap_multiplier=2), PAPER)
    for number in range(40):
        base = as_tokens(range(1000 * (number % 3), 1000 * (number % 3) + 200))
        tokens = base + as_tokens(
            range(9000 + 50 * number, 9000 + 50 * number + rng.randint(5, 40))
        )
        tree.look_up(tokens)
        tree.insert(tokens, tokens)
        tree.check()
    assert tree.bootstrap is not None
    assert tree.size <= 8 * STATE + 300 * TOKEN
