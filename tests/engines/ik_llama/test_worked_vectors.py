"""Worked examples: matches, cached and processed counts, checkpoints.

A conversation is written in runs of distinct tokens: `A` is 1000 of them, `G` what the first
request sampled, `U`, `Z`, `Y` new ones. Replies are forced, so counts do not depend on weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from cachesim.engines import Engine, Reply, Request
from cachesim.engines.byte_tokenizer import THINK_MARKS
from cachesim.engines.ik_llama import IkLlama
from cachesim.engines.ik_llama.companion import AttentionCompanion
from cachesim.errors import UpstreamAbort
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.units import Tokens, as_tokens

SEED_ERA = "ik_llama.cpp@d2da6da05"
LATER = "ik_llama.cpp@8337e4cd3"
BIG = 30_000


def run_of(start: int, count: int) -> Tokens:
    return as_tokens(range(start, start + count))


A = run_of(300, 1000)
B = run_of(2000, 800)
G = run_of(4000, 2000)  # what the first request samples
H = run_of(7000, 100)  # what the second one samples
U = run_of(8000, 50)
Z = run_of(9000, 500)
Y = run_of(10000, 500)
X = run_of(11000, 5000)


class Played:
    """A server with one model, and what each request gave."""

    def __init__(self, model: str, profile: str = SEED_ERA, **options: Any) -> None:
        network = build(preset(model, vocabulary=BIG), "ring")
        engine = Engine.create(profile, model=network, options={"ctx_size": 8192, **options})
        assert isinstance(engine, IkLlama)
        self.server = engine

    def ask(
        self, prompt: Tokens, reply: Tokens, drafts: tuple[Tokens, ...] | None = None
    ) -> tuple[int | None, int | None]:
        """Cached and processed tokens of one request."""
        answer = self.full(prompt, reply, drafts)
        return answer.cached, answer.processed

    def full(
        self, prompt: Tokens, reply: Tokens, drafts: tuple[Tokens, ...] | None = None
    ) -> Reply:
        ticket = self.server.submit(Request(prompt=prompt, reply=reply, drafts=drafts))
        self.server.run()
        self.server.check_integrity()
        answer = self.server.reply(ticket)
        assert answer is not None
        assert answer.cached is not None
        explained = sum(loss.before - loss.after for loss in answer.losses)
        assert explained == answer.equal - answer.cached
        return answer

    @property
    def checkpoints(self) -> list[int]:
        return [checkpoint.pos_max for checkpoint in self.server.slots[0].checkpoints]

    @property
    def parked(self) -> list[int]:
        return [int(entry.length) for entry in self.server.cache.entries]


SHORT = G[1500:1502]


def test_a_continuation_reuses_all_but_the_new_tokens() -> None:
    server = Played("dense")
    server.ask(A, G[:11])

    assert (1010, 50) == server.ask(A + G[:10] + U, SHORT)


def test_the_same_prompt_leaves_one_token() -> None:
    server = Played("dense")
    server.ask(A, G[:11])

    assert (999, 1) == server.ask(A, SHORT)


def test_a_divergence_keeps_the_common_prefix_and_parks_nothing() -> None:
    server = Played("dense")
    server.ask(A, G[:11])

    assert (700, 100) == server.ask(A[:700] + Z[:100], SHORT)
    assert [] == server.parked


def test_a_match_of_one_token_is_lost_on_dense_models() -> None:
    server = Played("dense")
    server.ask(A, G[:11])

    assert (0, 101) == server.ask(A[:1] + Z[:100], SHORT)
    assert [1010] == server.parked


@pytest.mark.parametrize(
    ("tokens", "expected", "parked"),
    [
        ("auto", [(0, 1000), (0, 800), (1020, 30), (820, 30)], [1, 1, 1]),
        ("none", [(0, 1000), (0, 800), (0, 1050), (0, 850)], None),
    ],
)
def test_a_lookup_without_exclusion_destroys_the_token_lists(
    tokens: str, expected: list[tuple[int, int]], parked: list[int] | None
) -> None:
    server = Played("dense", reasoning_tokens=tokens)
    prompts = [A, B, A + G[:20] + U[:30], B + H[:20] + Y[:30]]
    replies = [G[:21], H[:21], SHORT, SHORT]
    found, sizes = [], []
    for prompt, reply in zip(prompts, replies, strict=True):
        found.append(server.ask(prompt, reply))
        sizes.append(len(server.parked))

    assert expected == found
    if parked is not None:
        assert parked == sizes[1:]


def test_checkpoints_at_the_tolerance_in_generation_and_at_the_end() -> None:
    server = Played("hybrid-delta")
    server.ask(A, G[:11])
    first = server.checkpoints
    answer = server.ask(A + G[:10] + U, G[20:23])

    assert [994, 1000, 1009] == first
    assert (1010, 50) == answer
    assert [994, 1000, 1009, 1054, 1060, 1061] == server.checkpoints


def test_the_same_prompt_goes_back_to_the_tolerance_point() -> None:
    server = Played("hybrid-delta")
    server.ask(A, G[:11])
    answer = server.full(A, SHORT)

    assert (995, 5) == (answer.cached, answer.processed)
    assert 1000 not in server.checkpoints[:1]


NINE = {
    996: {"d2da6da05": 995, "+1888": 995, "+1689": 996, "8337e4cd3": 995},
    995: {"d2da6da05": 0, "+1888": 995, "+1689": 995, "8337e4cd3": 0},
    994: {"d2da6da05": 0, "+1888": 994, "+1689": 994, "8337e4cd3": 0},
    993: {"d2da6da05": 0, "+1888": 0, "+1689": 993, "8337e4cd3": 0},
}


@pytest.mark.parametrize("shared", NINE)
@pytest.mark.parametrize("rule", ["d2da6da05", "+1888", "+1689", "8337e4cd3"])
def test_one_token_of_match_decides(shared: int, rule: str) -> None:
    profile = SEED_ERA + rule if rule.startswith("+") else f"ik_llama.cpp@{rule}"
    server = Played("hybrid-delta", profile)
    server.ask(A, G[:11])
    cached = NINE[shared][rule]

    assert (cached, shared + 100 - cached) == server.ask(A[:shared] + Z[:100], SHORT)


@pytest.mark.parametrize(("profile", "cached"), [(SEED_ERA, 999), (LATER, 995)])
def test_the_last_token_is_taken_back_without_a_checkpoint(profile: str, cached: int) -> None:
    server = Played("hybrid-delta", profile)
    server.ask(A, G[:1])

    assert (cached, 1000 - cached) == server.ask(A, SHORT)


@pytest.mark.parametrize(("rule", "cached"), [("", 0), ("+1888", 35), ("+1689", 39)])
def test_short_prompts_have_no_checkpoint(rule: str, cached: int) -> None:
    server = Played("hybrid-delta", SEED_ERA + rule)
    server.ask(A[:40], G[:5])

    assert (cached, 40 - cached) == server.ask(A[:40], SHORT)


def test_a_batch_wide_spacing_of_checkpoints() -> None:
    server = Played("hybrid-delta", ctx_size=16384)
    server.ask(X, G[:3])
    first = server.checkpoints
    second = server.ask(X[:3000] + Z, G[10:13])
    third = server.ask(X[:1500] + Y, G[20:23])

    assert [2047, 4095, 4994, 5000, 5001] == first
    assert (2048, 1452) == second
    assert (0, 2000) == third


@pytest.mark.parametrize("options", [{"batch_size": 4096}, {"ctx_checkpoints_interval": 4096}])
def test_wider_spacing_loses_all(options: dict[str, int]) -> None:
    server = Played("hybrid-delta", ctx_size=16384, **options)
    server.ask(X, G[:3])

    assert (0, 3500) == server.ask(X[:3000] + Z, G[10:13])


@pytest.mark.parametrize(
    ("profile", "kept", "answer"),
    [(SEED_ERA, [4994, 5000, 5001], (0, 2200)), (LATER, [2047, 5000, 5001], (2048, 152))],
)
def test_what_a_small_list_keeps(profile: str, kept: list[int], answer: tuple[int, int]) -> None:
    server = Played("hybrid-delta", profile, ctx_size=16384, ctx_checkpoints=3)
    server.ask(X, G[:3])
    checkpoints = server.checkpoints

    assert kept == checkpoints
    assert answer == server.ask(X[:2100] + Z[:100], SHORT)


S = run_of(18000, 600)
a = run_of(19000, 1400)
b = run_of(21000, 200)
x = run_of(22000, 480)


def test_a_load_overwrites_a_slot_that_was_not_saved() -> None:
    server = Played("hybrid-delta")
    server.ask(S + a, G[:21])
    second = server.ask(S + b, H[:21])
    third = server.ask(S + a + G[:20] + U[:30], SHORT)

    assert (0, 800) == second
    assert (2020, 30) == third
    assert [] == server.parked


@pytest.mark.parametrize(
    ("model", "profile", "third", "fourth"),
    [
        ("dense", SEED_ERA, (600, 200), (600, 1450)),
        ("hybrid-delta", SEED_ERA, (0, 800), (0, 2050)),
        ("dense", LATER, (0, 800), (2020, 30)),
        ("hybrid-delta", LATER, (0, 800), (2020, 30)),
        ("dense", SEED_ERA + "+1877", (0, 800), (2020, 30)),
        ("hybrid-delta", SEED_ERA + "+1877", (0, 800), (2020, 30)),
    ],
)
def test_a_load_consumes_what_the_next_step_throws_away(
    model: str, profile: str, third: tuple[int, int], fourth: tuple[int, int]
) -> None:
    server = Played(model, profile)
    server.ask(S + a, G[:21])
    server.ask(x, H[:21])

    assert third == server.ask(S + b, H[30:51])
    assert fourth == server.ask(S + a + G[:20] + U[:30], SHORT)


def test_a_recurrent_model_resets_by_checkpoint_or_by_a_refused_trim() -> None:
    options = {"cache_ram": 0, "ctx_checkpoints": 0}
    diverging = Played("recurrent", **options)
    diverging.ask(A, G[:11])
    repeating = Played("recurrent", **options)
    repeating.ask(A, G[:1])

    assert (0, 1000) == diverging.ask(A, SHORT)
    assert (0, 1000) == repeating.ask(A, SHORT)
    assert "full-reset" in [event.name() for event in repeating.server.events]


def test_restoring_a_recurrent_checkpoint_ends_the_process() -> None:
    server = Played("recurrent", cache_ram=0)
    server.ask(A, G[:11])

    with pytest.raises(UpstreamAbort, match="sequence id"):
        server.ask(A, SHORT)


@pytest.mark.parametrize(
    ("model", "tags", "answer"),
    [
        ("hybrid-delta", "auto", (995, 45)),
        ("dense", "auto", (1000, 40)),
        ("hybrid-delta", "none", (0, 1040)),
    ],
)
def test_reasoning_is_left_out_of_the_choice_not_of_the_count(
    model: str, tags: str, answer: tuple[int, int]
) -> None:
    thought = (THINK_MARKS[0], *run_of(12_000, 1500), THINK_MARKS[1])
    said = run_of(14_000, 10)
    prompt = run_of(600, 1000)
    server = Played(model, reasoning_tokens=tags, chat_template="strip-reasoning")
    server.ask(prompt, thought + said)
    made = server.checkpoints

    assert answer == server.ask(prompt + said + U[:30], SHORT)
    assert ([994, 1000, 1511, 2022, 2510] if model == "hybrid-delta" else []) == made
    assert ([2511] if tags == "none" else []) == server.parked[:1]


def test_a_cancelled_prompt_keeps_whole_ubatches_and_leaves_the_companion_a_hole() -> None:
    prompt = X[:3000]
    server = Played("hybrid-mtp", companion="attn", draft_max=3)
    gone = server.server.submit(Request(prompt=prompt, options={"cancel_after_ubatches": 3}))
    server.server.run()
    refused = server.server.reply(gone)

    assert refused is not None
    assert "cancelled" == refused.error
    assert -1 == tail(server)
    assert (1536, 1464) == server.ask(prompt, SHORT[:1])
    companion = server.server.companion
    assert isinstance(companion, AttentionCompanion)
    assert 1464 == companion.context.cells.used


# -- the companion -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """Drafts of five speculative steps: 3 of 2, 3 of 3, 3 of 0, 3 of 1 accepted, then the end."""

    reply: Tokens

    @property
    def drafts(self) -> tuple[Tokens, ...]:
        wrong = run_of(29_000, 3)
        out, at = [], 1
        for accepted in (2, 3, 0, 1):
            out.append(self.reply[at : at + accepted] + wrong[accepted:3])
            at += accepted + 1
        return tuple(out)


def speculative(server: Played, prompt: Tokens, reply: Tokens) -> tuple[int | None, int | None]:
    return server.ask(prompt, reply, Steps(reply).drafts)


def tail(server: Played) -> int:
    assert server.server.companion is not None
    return server.server.companion.tail


@pytest.mark.parametrize("patch", ["", "+1889"])
def test_a_sound_companion_changes_nothing(patch: str) -> None:
    options = {"companion": "attn", "draft_max": 3}
    going_on = Played("hybrid-mtp", SEED_ERA + patch, **options)
    speculative(going_on, A, G[:11])
    checkpoints, after = going_on.checkpoints, tail(going_on)
    again = Played("hybrid-mtp", SEED_ERA + patch, **options)
    speculative(again, A, G[:11])

    assert [994, 1009] == checkpoints
    assert 1009 == after
    assert (1010, 40) == going_on.ask(A + G[:10] + U[:40], SHORT)
    assert (995, 5) == again.ask(A, SHORT)


def test_a_load_leaves_the_companion_with_another_conversation() -> None:
    server = Played("hybrid-mtp", companion="attn", draft_max=3)
    speculative(server, A, G[:11])
    other = run_of(23_000, 400)
    second = speculative(server, other, H[:11])

    assert (0, 400) == second
    assert (1010, 40) == speculative(server, A + G[:10] + U[:40], G[30:41])
    companion = server.server.companion
    assert isinstance(companion, AttentionCompanion)
    assert 1059 == companion.tail
    assert 460 == companion.context.cells.used


B4 = run_of(23_000, 400)

STRICT: dict[str, tuple[str, Sequence[Tokens], tuple[int, int], tuple[int, int]]] = {
    "W1 hybrid": ("hybrid-mtp", [A, A + G[:10] + U[:40]], (1010, 40), (1010, 40)),
    "W1 dense": ("dense", [A, A + G[:10] + U[:40]], (1010, 40), (1010, 40)),
    "W2": ("hybrid-mtp", [A, A], (0, 1000), (995, 5)),
    "W3": ("dense", [A, A], (0, 1000), (999, 1)),
    "W4": ("dense", [A, A, A[:600] + Z[:300]], (0, 900), (600, 300)),
    "W5": ("hybrid-mtp", [A, A, A[:600] + Z[:300]], (0, 900), (0, 900)),
    "W7 hybrid": ("hybrid-mtp", [B4, A, B4 + H[:10] + U[:40]], (0, 450), (410, 40)),
    "W7 dense": ("dense", [B4, A, B4 + H[:10] + U[:40]], (0, 450), (410, 40)),
    "W8 hybrid": ("hybrid-mtp", [A, B4, A + G[:10] + U[:40]], (1010, 40), (1010, 40)),
    "W8 dense": ("dense", [A, B4, A + G[:10] + U[:40]], (1010, 40), (1010, 40)),
}


@pytest.mark.parametrize("patched", [False, True], ids=["before", "with 1889"])
@pytest.mark.parametrize("row", STRICT)
def test_w_rows_of_a_companion_that_refuses(row: str, patched: bool) -> None:
    model, prompts, before, after = STRICT[row]
    server = Played(
        model, SEED_ERA + ("+1889" if patched else ""), companion="strict_tail", draft_max=3
    )
    answer: tuple[int | None, int | None] = (None, None)
    for prompt in prompts:
        answer = speculative(server, prompt, H[:11] if prompt[0] == B4[0] else G[:11])

    assert (after if patched else before) == answer


@pytest.mark.parametrize(("patch", "answer"), [("", (0, 3500)), ("+1889", (2048, 1452))])
def test_a_refused_rewind_loses_the_checkpoints_too(patch: str, answer: tuple[int, int]) -> None:
    server = Played(
        "hybrid-mtp", SEED_ERA + patch, companion="strict_tail", draft_max=3, ctx_size=16384
    )
    speculative(server, X, G[:11])

    assert answer == speculative(server, X[:3000] + Z, G[:11])


@pytest.mark.parametrize("patch", ["", "+1889"])
def test_a_primary_that_refuses_is_reset_with_the_patch_too(patch: str) -> None:
    server = Played("recurrent", SEED_ERA + patch, cache_ram=0, ctx_checkpoints=0)
    server.ask(A, G[:1])

    assert (0, 1000) == server.ask(A, SHORT)


@pytest.mark.parametrize(("patch", "answer"), [("", (0, 2600)), ("+1889", (2048, 552))])
def test_the_later_release_reaches_a_refusing_companion(
    patch: str, answer: tuple[int, int]
) -> None:
    server = Played("hybrid-mtp", LATER + patch, companion="window", draft_max=3, ctx_size=16384)
    server.ask(X[:3000], G[:1])

    assert answer == server.ask(X[:2500] + Z[:100], SHORT)
