"""The verdict: two axes, from a reply and a cold run of its own tokens."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.base import Reply
from cachesim.errors import ContractError
from cachesim.model.arithmetic import Network, PlainStore
from cachesim.model.build import build
from cachesim.model.presets import tiny
from cachesim.model.store import Ubatch
from cachesim.model.trace import Traced
from cachesim.typed import there_is
from cachesim.units import Array, Count, Tokens, as_tokens
from cachesim.verify.oracle import Oracle, cold_logits
from cachesim.verify.verdict import BOUND, Verdict, judge

FLOAT = build(tiny("hybrid"))
RING = build(tiny("hybrid"), "ring")
PROMPT = as_tokens(range(300, 320))
every_arithmetic = pytest.mark.parametrize("network", [FLOAT, RING], ids=["float", "ring"])


def generate(network: Network, prompt: Tokens, count: int) -> tuple[Tokens, Array]:
    """The answer of a server without any cache."""
    tokens, rows = prompt, []
    for _ in range(count):
        rows.append(cold_logits(network, tokens)[-1])
        tokens += (network.sample(rows[-1]),)
    return tokens[len(prompt) :], np.array(rows)


def reply(network: Network, *, cached: int = 0, wrong_from: int | None = None) -> Reply:
    """Four tokens; from a step on as if another token had stood third in the prompt."""
    generated, rows = generate(network, PROMPT, 4)
    if wrong_from is not None:
        other = (*PROMPT[:2], PROMPT[5], *PROMPT[3:])
        rows[wrong_from:] = cold_logits(network, other + generated[:-1])[19 + wrong_from :]
    return Reply(
        prompt=PROMPT,
        generated=generated,
        logits=rows,
        cached=Count(cached),
        processed=Count(20 - cached),
    )


def judged(network: Network, given_reply: Reply, due: int = 0) -> Verdict:
    return there_is(judge(given_reply, Oracle(network), due=Count(due)))


@every_arithmetic
def test_the_cold_answer_is_the_same(network: Network) -> None:
    verdict = judged(network, reply(network, cached=19), due=19)

    assert Verdict(answer="same", reuse="as declared", max_difference=0.0) == verdict


@every_arithmetic
@given(st.integers(0, 3))
def test_a_wrong_answer_is_named_by_its_first_wrong_step(network: Network, step: int) -> None:
    given_reply = reply(network, cached=10, wrong_from=step)

    verdict = judged(network, given_reply)

    assert ("diverged", "unsound") == (verdict.answer, verdict.reuse)
    assert verdict.wrong is not None
    assert step == verdict.wrong.step
    assert given_reply.generated[step] == verdict.wrong.cold
    assert network.sample(given_reply.logits[step]) == verdict.wrong.token
    assert 0 < verdict.wrong.difference <= verdict.max_difference


def test_a_wrong_answer_is_unsound_even_where_nothing_was_declared() -> None:
    assert "unsound" == judged(RING, reply(RING, cached=0, wrong_from=1)).reuse


def test_a_difference_that_the_server_announced_is_by_design() -> None:
    announced = replace(reply(FLOAT, cached=9, wrong_from=1), approximated="context-shift")

    verdict = judged(FLOAT, announced, due=9)

    assert ("by-design", "as declared") == (verdict.answer, verdict.reuse)
    assert verdict.wrong is not None


def test_an_announcement_without_a_difference_is_the_same() -> None:
    assert "same" == judged(FLOAT, replace(reply(FLOAT), approximated="context-shift")).answer


@every_arithmetic
def test_fewer_tokens_than_were_due_are_lost(network: Network) -> None:
    assert "lost" == judged(network, reply(network, cached=18), due=19).reuse
    assert "as declared" == judged(network, reply(network, cached=19), due=18).reuse


def test_float_rows_may_be_off_by_rounding_and_words_may_not() -> None:
    right = reply(FLOAT)
    scale = np.abs(right.logits).max(axis=1, keepdims=True)
    within = replace(right, logits=right.logits + BOUND / 2 * scale)
    beyond = replace(right, logits=right.logits + BOUND * 2 * scale)
    words = reply(RING)

    assert ("rounding", "as declared") == (
        judged(FLOAT, within).answer,
        judged(FLOAT, within).reuse,
    )
    assert "diverged" == judged(FLOAT, beyond).answer
    assert "diverged" == judged(RING, replace(words, logits=words.logits + np.uint64(1))).answer


def test_a_refused_request_has_no_verdict() -> None:
    refused = Reply(
        prompt=PROMPT,
        generated=(),
        logits=np.zeros((0, 1), np.uint64),
        cached=None,
        processed=None,
        error="exceed_context_size_error",
    )

    assert judge(refused, Oracle(RING)) is None


def test_a_reply_without_tokens_is_like_any_other() -> None:
    silent = replace(reply(RING), generated=(), logits=np.zeros((0, 1), np.uint64))

    assert "same" == judged(RING, silent).answer


def test_a_row_for_each_generated_token_or_it_is_our_bug() -> None:
    right = reply(RING)

    with pytest.raises(ContractError, match="3 rows of logits for 4 generated tokens"):
        judge(replace(right, logits=right.logits[1:]), Oracle(RING))


def test_forced_tokens_are_followed_and_not_judged() -> None:
    forced = as_tokens([400, 401, 402])
    rows = cold_logits(RING, PROMPT + forced[:-1])[19:]

    assert "same" == judged(RING, replace(reply(RING), generated=forced, logits=rows)).answer


def test_a_trace_names_the_memory_and_the_tokens_it_holds() -> None:
    traced = Traced(RING)
    store, foreign = PlainStore(traced), PlainStore(traced)
    run(traced, store, PROMPT[:15])
    run(traced, foreign, PROMPT[5:8])
    for shape in traced.shapes:
        if shape.place == "recurrent":
            store._states[shape.layer] = foreign._states[shape.layer]
    row = run(traced, store, PROMPT[15:], 15)[-1:]
    wrong = replace(reply(RING), generated=(traced.sample(row[0]),), logits=row)

    verdict = there_is(judge(wrong, Oracle(RING), trace=traced))

    assert verdict.fault is not None
    assert (0, "recurrent", 15) == (verdict.fault.layer, verdict.fault.place, verdict.fault.token)
    assert (PROMPT[5:8], PROMPT[:15]) == (verdict.fault.holds, verdict.fault.expected)


def run(network: Network, store: PlainStore, tokens: Tokens, first: int = 0) -> Array:
    positions = np.arange(first, first + len(tokens))
    return network.run(Ubatch(tokens=np.array(tokens), positions=positions), store).logits
