"""Every server under the verdict: answers, ledgers and accounts must agree on any workload."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines import Engine, Reply, Request
from cachesim.errors import UpstreamAbort
from cachesim.model.build import build
from cachesim.model.presets import PRESETS, tiny
from cachesim.model.spec import ModelSpec
from cachesim.model.trace import Traced
from cachesim.typed import there_is
from cachesim.units import Tokens, as_tokens
from cachesim.verify import IdealCache, Oracle, Verdict, explain, judge

OPTIONS: dict[str, dict[str, Any]] = {
    "chunks": {"cache_reuse": 3},
    "shifts": {"ctx_size": 256, "context_shift": True},
    "small batches": {"batch_size": 16, "ubatch_size": 8},
    "no prompt cache": {"cache_ram": 0},
}

PROFILES = (
    "llama.cpp@b9093",
    "llama.cpp@b9538",
    "llama.cpp@b11549",
    "ik_llama.cpp@d2da6da05",
    "ik_llama.cpp@d2da6da05+1888",  # restores a state that has seen one token too many
    "ik_llama.cpp@8337e4cd3",
    "mlx-lm@0.31.3",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt that goes on from an earlier conversation, cut somewhere, with new tokens."""

    of: int
    cut: float  # 1.0: all of it
    new: Tokens
    predict: int


turns = st.lists(
    st.builds(
        Turn,
        st.integers(0, 9),
        st.sampled_from([0.0, 0.3, 0.7, 0.95, 1.0]),
        st.lists(st.integers(300, 302), min_size=1, max_size=40).map(as_tokens),
        st.integers(1, 6),
    ),
    min_size=2,
    max_size=8,
)


class Bench:
    """A server that is traced, and everything that judges it."""

    def __init__(
        self, profile: str, spec: ModelSpec, options: Mapping[str, Any] | None = None
    ) -> None:
        network = build(spec, "ring")
        self.trace = Traced(network)
        self.server = Engine.create(profile, model=self.trace, options=options)
        self.oracle = Oracle(network)
        self.ideal = IdealCache()
        self.said: list[Tokens] = []
        # what was wrong long ago may not matter, nor a first layer's cell for the same token
        self.forgets = spec.reach is not None or "window" in spec.layers

    def play(self, turn: Turn) -> Reply | None:
        """The reply to a turn, or None where the real process ends."""
        before = self.said[turn.of % len(self.said)] if self.said else ()
        prompt = before[: int(turn.cut * len(before))] + turn.new
        ticket = self.server.submit(Request(prompt=prompt, predict=turn.predict))
        try:
            self.server.run()
        except UpstreamAbort:
            return None
        reply = there_is(self.server.reply(ticket))
        self.said.append(prompt + reply.generated)
        return reply

    def work(self, workload: list[Turn]) -> None:
        """Play and check turn after turn, as long as the server lives and accepts them."""
        for turn in workload:
            reply = self.play(turn)
            if reply is None or reply.error is not None:
                return
            self.check(reply)

    def check(self, reply: Reply) -> Verdict:
        """Let verdict, account and ledgers say what they think, and agree."""
        account = there_is(explain(reply, self.ideal))
        verdict = there_is(judge(reply, self.oracle, due=account.ideal, trace=self.trace))
        self.ideal.remember(reply)
        for i, row in enumerate(reply.logits):
            clean = self.trace.fault(row, reply.prompt + reply.generated[:i]) is None
            right = verdict.wrong is None or i < verdict.wrong.step
            assert right or not clean
            assert clean or not right or self.forgets
        assert (verdict.wrong is None) == (verdict.fault is None)
        assert (account.lost > 0) == (verdict.reuse == "lost") or verdict.answer == "diverged"
        return verdict


@pytest.mark.sampled(3)
@pytest.mark.parametrize("profile", PROFILES)
@given(st.sampled_from(sorted(PRESETS)), turns)
def test_an_answer_is_wrong_exactly_where_a_ledger_is_and_every_account_adds_up(
    profile: str, preset: str, workload: list[Turn]
) -> None:
    Bench(profile, tiny(preset)).work(workload)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@given(st.sampled_from(sorted(PRESETS)), turns)
def test_verdict_and_ledger_agree_under_any_options(
    options: dict[str, Any], preset: str, workload: list[Turn]
) -> None:
    Bench("llama.cpp@b9538", tiny(preset), options).work(workload)


def test_a_shifted_context_and_a_moved_chunk_differ_by_design() -> None:
    prompt = as_tokens(range(300, 340))
    shifts = Bench("llama.cpp@b9538", tiny("dense"), OPTIONS["shifts"])
    chunks = Bench("llama.cpp@b9538", tiny("dense"), OPTIONS["chunks"])
    chunks.play(Turn(0, 0.0, prompt, 1))

    shifted = shifts.play(Turn(0, 0.0, prompt * 6, 20))
    moved = chunks.play(Turn(0, 0.0, prompt[:10] + prompt[20:], 4))

    for bench, reply in ((shifts, shifted), (chunks, moved)):
        assert reply is not None
        verdict = bench.check(reply)
        assert "by-design" == verdict.answer
        assert verdict.reuse == "as declared"


@pytest.mark.parametrize("preset", ["dense", "hybrid"])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_conversation_that_only_grows_is_right_and_loses_nothing(
    profile: str, preset: str
) -> None:
    bench = Bench(profile, tiny(preset))
    for start in (300, 340, 380):
        reply = bench.play(Turn(len(bench.said) - 1, 1.0, as_tokens(range(start, start + 30)), 4))
        assert reply is not None

        verdict = bench.check(reply)

        assert ("same", "as declared") == (verdict.answer, verdict.reuse)


@pytest.mark.parametrize("profile", ["llama.cpp@b9538", "llama.cpp@b11549"])
@pytest.mark.parametrize("preset", ["dense", "swa", "recurrent", "hybrid", "hybrid-delta"])
def test_three_requests_and_the_last_begins_with_a_token_of_the_first(
    profile: str, preset: str
) -> None:
    """The checkpoint of one token, `pos_max` 0, survives every erasure and fits any prompt."""
    bench = Bench(profile, PRESETS[preset])
    turns = (Turn(0, 0.0, as_tokens(range(a, b)), 8) for a, b in ((270, 275), (300, 340)))
    for turn in turns:
        reply = there_is(bench.play(turn))
        assert "same" == bench.check(reply).answer

    reply = there_is(bench.play(Turn(1, 20 / 48, as_tokens(range(400, 420)), 8)))
    verdict = bench.check(reply)

    if preset == "dense":
        assert (20, "same", "as declared") == (reply.cached, verdict.answer, verdict.reuse)
        return
    assert (1, "diverged", "unsound") == (reply.cached, verdict.answer, verdict.reuse)
    assert verdict.fault is not None
    assert (1, as_tokens([270])) == (verdict.fault.token, verdict.fault.holds)
    assert as_tokens([300]) == verdict.fault.expected
