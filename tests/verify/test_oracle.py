"""The oracle: one cold run is the definition, and kept runs answer the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.errors import TokenError
from cachesim.model.build import build
from cachesim.model.spec import ModelSpec
from cachesim.units import Tokens, as_tokens
from cachesim.verify.oracle import KEPT, NETWORKS, Oracle, Oracles, cold_logits
from tests.fixtures import Patch

SPEC = ModelSpec(layers=("ssm", "attention", "window"), window=4)
NETWORK = build(SPEC, "ring")


def test_every_row_by_default_and_only_those_asked_for() -> None:
    prompt = as_tokens(range(300, 320))

    every = cold_logits(SPEC, prompt, arithmetic="ring")

    assert len(prompt) == len(every)
    assert np.array_equal(every[[4, 19]], cold_logits(NETWORK, prompt, rows=[4, 19]))
    assert np.array_equal(every[[4, 19, 4]], cold_logits(NETWORK, prompt, rows=[4, 19, 4]))
    assert 0 == len(cold_logits(NETWORK, prompt, rows=[]))
    assert np.array_equal(every[:7], cold_logits(NETWORK, prompt[:7]))


def test_long_runs_go_through_in_pieces_and_say_the_same(monkeypatch: Patch) -> None:
    prompt = as_tokens(range(300, 350))
    rows = [0, 6, 7, 8, 49]
    expected = cold_logits(NETWORK, prompt, rows=rows)

    monkeypatch.setattr("cachesim.verify.oracle.PIECE", 7)

    assert np.array_equal(expected, cold_logits(NETWORK, prompt, rows=rows))


def test_nothing_has_no_logits() -> None:
    with pytest.raises(TokenError, match="at least one token"):
        cold_logits(NETWORK, ())


few_tokens = st.lists(st.integers(300, 302), min_size=1, max_size=12).map(as_tokens)


@given(st.lists(st.tuples(few_tokens, few_tokens), min_size=1, max_size=12))
def test_an_oracle_with_kept_runs_says_what_a_cold_run_says(
    questions: list[tuple[Tokens, Tokens]],
) -> None:
    oracle = Oracle(NETWORK)
    for prompt, generated in questions:
        tokens = prompt + generated[:-1]
        rows = range(len(prompt) - 1, len(tokens))

        assert np.array_equal(
            cold_logits(NETWORK, tokens, rows=rows), oracle.logits(prompt, generated)
        )


def test_a_conversation_runs_on_instead_of_starting_again() -> None:
    oracle = Oracle(NETWORK)
    first, reply, more = (as_tokens(range(a, a + 20)) for a in (300, 350, 400))

    oracle.logits(first, reply)
    run = oracle._runs[0]
    oracle.logits(first + reply + more, reply)
    oracle.logits(first + reply + more, reply)

    assert [run] == oracle._runs
    assert first + reply + more + reply[:-1] == run.tokens


def test_only_the_last_few_runs_are_kept() -> None:
    oracle = Oracle(NETWORK)
    for token in range(300, 300 + 2 * KEPT):
        oracle.logits(as_tokens([token]), as_tokens([301]))

    assert KEPT == len(oracle._runs)


def test_what_was_asked_before_is_not_computed_again() -> None:
    oracle = Oracle(NETWORK)
    prompt, reply = as_tokens(range(300, 320)), as_tokens(range(350, 355))
    said = oracle.logits(prompt, reply)
    oracle._runs.clear()

    assert oracle.logits(prompt, reply) is said
    assert [] == oracle._runs
    with pytest.raises(ValueError, match="read-only"):
        said[0] = 0


def test_no_more_rows_are_remembered_than_there_is_room_for(monkeypatch: Patch) -> None:
    monkeypatch.setattr("cachesim.verify.oracle.ROWS", 5)
    oracle, reply = Oracle(NETWORK), as_tokens([301, 302])
    for token in (300, 301, 302, 300, 303):
        oracle.logits(as_tokens([token]), reply)

    kept = [tokens[0] for tokens, _ in oracle._answers]
    assert [300, 303] == kept  # the last two asked for, of two rows each
    oracle.logits(as_tokens([300]), as_tokens(range(301, 311)))  # more rows than there is room for
    assert {} == oracle._answers


def test_plays_that_are_alike_share_the_oracle_of_their_network() -> None:
    oracles = Oracles()
    networks = [build(ModelSpec(layers=("ssm",), seed=seed), "ring") for seed in range(NETWORKS)]
    first = oracles.of(NETWORK)

    assert oracles.of(NETWORK) is first
    assert all(oracles.of(network).network is network for network in networks)
    assert oracles.of(NETWORK) is not first  # the others took its place
