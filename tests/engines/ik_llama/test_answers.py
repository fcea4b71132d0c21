"""Answers from cache against cold answers, by release and patch."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim import run_scenario
from cachesim.engines import Engine, Request
from cachesim.engines.chat import FIRST_BYTE
from cachesim.engines.ik_llama import slot as matching
from cachesim.engines.ik_llama.server import IkLlama
from cachesim.engines.ik_llama.slot import Slot, common_prefix, texts, without_reasoning
from cachesim.engines.ik_llama.vocabulary import ContextShifted
from cachesim.engines.tokens import LONGEST, Rope
from cachesim.errors import UpstreamAbort
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.play.session import SlotFiles
from cachesim.typed import of_kind
from cachesim.units import Token, Tokens, as_tokens
from conformance.real.ik_llama.orders import mismatch, play
from tests.engines.asking import is_cold
from tests.engines.ik_llama.worked_kit import BIG, SEED_ERA, Played, Steps, run_of

a = run_of(19000, 1400)


def test_the_context_is_rounded_up_before_the_slots_share_it() -> None:
    """A server with -c 128 processes a prompt of 150 tokens as a whole; 256 are cut to 128."""
    small = Played("dense", ctx_size=128)

    assert 150 == small.reply(run_of(300, 150)).processed
    assert 128 == small.reply(run_of(2000, 256)).processed
    shared = Played("dense", ctx_size=7, parallel=3).server.slots
    assert [85, 85, 85] == [each.n_ctx for each in shared]


def test_a_cut_prompt_costs_the_slot_one_block_however_many_it_loses() -> None:
    """As on a real server: 133 tokens of the reply are found behind three lost blocks."""
    server = Played("dense", ctx_size=256, cache_ram=0)
    first, reply, more = run_of(300, 236), run_of(2000, 90), run_of(5000, 100)
    fields = {"n_discard": 64}

    server.reply(first, reply, options=fields)
    again = server.reply(first + reply + more, options=fields)

    assert (133, 101) == (again.cached, again.processed)


@pytest.mark.parametrize(("patch", "sent", "reused"), [("", 13, 95), ("+2358", 16, 115)])
def test_a_reply_ends_before_the_last_draft_is_sent_until_2358(
    patch: str, sent: int, reused: int
) -> None:
    """The slot keeps tokens that no client has seen: the next turn goes back to a checkpoint."""
    server = Played("hybrid-mtp", f"ik_llama.cpp@8337e4cd3{patch}", companion="attn", draft_max=3)
    prompt, reply = run_of(300, 100), run_of(2000, 16)
    drafts = (*((),) * 11, reply[12:15])

    first = server.reply(prompt, reply, drafts=drafts, predict=16)
    again = server.reply(prompt + first.generated + run_of(5000, 40))

    assert (sent, reused) == (len(first.generated), again.cached)


@pytest.mark.parametrize("model", ["dense", "hybrid-delta"])
@pytest.mark.parametrize("release", ["d2da6da05", "8337e4cd3"])
def test_restoring_the_file_of_an_empty_slot_ends_the_server(model: str, release: str) -> None:
    network = build(preset(model, vocabulary=BIG), "ring")
    profile = f"ik_llama.cpp@{release}"
    server = of_kind(IkLlama, Engine.create(profile, model=network, store=SlotFiles()))
    server.slot_save(0, "empty")

    with pytest.raises(UpstreamAbort, match=r"kv_self\.cells"):
        server.slot_restore(0, "empty")


def test_after_a_failed_decode_idle_slots_count_as_used() -> None:
    """All slots are released, in the order of their numbers: slot 0 is idle for longest again."""
    server = Played("dense", ctx_size=256, parallel=3, context_shift=False, cache_ram=0)
    for slot, start in enumerate((300, 2000, 4000)):
        server.reply(run_of(start, 60), slot=slot)
    server.reply(run_of(300, 60), slot=0)  # slot 1 is idle for longest
    refused = server.reply(run_of(6000, 200), slot=1)

    assert ("server_error", 0) == (refused.error, server.reply(run_of(8000, 20)).slot)


@pytest.mark.parametrize("early", [False, True])
def test_a_server_empties_its_memory_when_it_is_first_idle_but_no_list(early: bool) -> None:
    server = Played("hybrid-delta", "ik_llama.cpp@8337e4cd3")
    server.server.submit(
        Request(prompt=a[:80], reply=a[500:501], options={"before_first_idle": early})
    )
    server.server.run()

    last = server.full(a[:80] + a[500:510], run_of(4000, 2))

    assert (80, not early) == (last.cached, is_cold(server.server, last))


def test_what_the_server_emptied_is_named_also_a_turn_later() -> None:
    run = run_scenario(
        "ik_llama.cpp-request-while-the-model-loads",
        profile="ik_llama.cpp@8337e4cd3",
        arithmetic="ring",
    )
    named = [
        (fact.fields["position"], fact.fields["holds"])
        for step in run.steps
        for fact in step.facts
        if fact.word == "because"
    ]

    assert [(199, None), (199, None)] == named


def test_a_shift_by_text_loses_the_tokens_that_the_slot_has() -> None:
    """A prompt that is shorter than n_keep: the block is counted from the prompt's end."""
    server = Played("dense", "ik_llama.cpp@8337e4cd3", ctx_size=256, parallel=2)
    request = Request(prompt=a[:72], reply=run_of(4000, 57), slot=0, options={"n_keep": 127})
    server.server.submit(request)
    server.server.run()

    [shifted] = [event for event in server.server.events if isinstance(event, ContextShifted)]
    assert (124, 1, 53, 74) == (
        shifted.n_keep, shifted.n_discard, shifted.removed, shifted.n_past,
    )  # fmt: skip


VECTORS = Path(__file__).parents[2] / "vectors"
FILES = sorted(VECTORS.glob("server-ik-*.jsonl.gz"))


def workloads() -> list[dict[str, Any]]:
    found = []
    for file in FILES:
        with gzip.open(file, "rt") as lines:
            found += [json.loads(line) for line in lines]
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workload", workloads(), ids=lambda workload: workload["id"])
def test_every_request_agrees_with_the_real_server(workload: dict[str, Any]) -> None:
    assert mismatch(workload) is None


@pytest.mark.nightly
@pytest.mark.thorough
def test_with_one_slot_no_order_of_arrival_is_needed() -> None:
    alone = [workload for workload in workloads() if workload["options"]["parallel"] == 1]

    assert 211 == len(alone)
    assert [] == [each["id"] for each in alone if play(each)[1] is not None]


FIRST = run_of(300, 96)
SAMPLED = run_of(4000, 11)
MENU: list[Tokens] = [
    FIRST,
    FIRST + SAMPLED[:10],
    FIRST + SAMPLED[:10] + run_of(8000, 40),
    FIRST[:70],
    FIRST[:50] + run_of(9000, 60),
    run_of(2000, 80),
    as_tokens([300]),
]


def answers_cold(server: Played, picks: list[int], companion: str) -> bool:
    drafts = Steps(SAMPLED).drafts if companion != "none" else None
    return all(is_cold(server.server, server.full(MENU[e], SAMPLED, drafts)) for e in picks)


PICKS = st.lists(st.integers(0, len(MENU) - 1), min_size=1, max_size=5)


@pytest.mark.thorough
@given(
    picks=PICKS,
    model=st.sampled_from(["dense", "swa"]),
    companion=st.sampled_from(["none", "strict_tail"]),
    patch=st.sampled_from(["", "+1889"]),
)
def test_models_without_recurrent_rows_always_answer_cold(
    picks: list[int], model: str, companion: str, patch: str
) -> None:
    server = Played(model, SEED_ERA + patch, companion=companion, draft_max=3, ctx_size=1024)

    assert answers_cold(server, picks, companion)


@pytest.mark.thorough
@given(
    picks=PICKS,
    companion=st.sampled_from(["none", "attn", "strict_tail"]),
    patch=st.sampled_from(["+2105", "+2105+1889"]),  # without 2105 the last token enters twice
    mode=st.sampled_from(["gpu-fallback", "cpu"]),
)
def test_whatever_happens_to_the_companion_a_hybrid_answers_cold(
    picks: list[int], companion: str, patch: str, mode: str
) -> None:
    options = {"companion": companion, "draft_max": 3, "ctx_size": 1024}
    server = Played("hybrid-mtp", SEED_ERA + patch, recurrent_ckpt_mode=mode, **options)

    assert answers_cold(server, picks, companion)


def test_the_networks_hold_every_token_of_these_stories() -> None:
    assert BIG == build(preset("dense", vocabulary=BIG), "ring").spec.vocabulary


@pytest.mark.parametrize(("patch", "right"), [("", False), ("+released-refusals", True)])
@pytest.mark.parametrize("release", ["d2da6da05", "8337e4cd3"])
def test_a_prompt_after_a_refused_one_resumes_from_no_older_checkpoint(
    release: str, patch: str, right: bool
) -> None:
    """A slot that refuses a prompt prefills it all the same, and erases no checkpoint."""
    server = Played("hybrid", f"ik_llama.cpp@{release}{patch}", ctx_size=256, ctx_checkpoints=4)
    server.full(a[:80], run_of(4000, 2))
    server.server.submit(Request(prompt=a[:300], reply=run_of(4000, 2)))
    server.server.run()

    last = server.full(a[:100] + run_of(25_000, 20), run_of(4000, 2))

    assert right == is_cold(server.server, last)


# Batches that both contexts decode: a drafting head is fed in pieces as at once.


def drafted(ubatch_size: int) -> list[list[Token]]:
    """Drafts of a head whose context is fed in pieces; in floats, where rows decide on them."""
    played = Engine.create(
        SEED_ERA,
        model=preset("hybrid-mtp"),
        options={
            "companion": "attn",
            "draft_p_min": 0.0,
            "recurrent_ckpt_mode": "cpu",  # states by step are those of the last ubatch
            "ubatch_size": ubatch_size,
        },
    )
    assert isinstance(played, IkLlama)
    draft, found = played.speculation.draft, list[list[Token]]()

    def drafting(slot: Slot) -> list[Token]:
        found.append(draft(slot))
        return found[-1]

    played.speculation.draft = drafting  # type: ignore[method-assign]
    played.submit(Request(prompt=run_of(300, 9), predict=8))
    played.run()
    return found


def test_a_head_that_is_fed_in_pieces_drafts_as_one_that_is_fed_at_once() -> None:
    whole = drafted(512)

    assert any(whole)
    assert [whole, whole] == [drafted(1), drafted(3)]


# Two lists are compared by text the long way only where that can find something.

TEXT_OF = texts("chatml")
NUMBER = 1_023_456_789
TAGS = (("<t>", "</t>"), (f"[{NUMBER}]", "]"))
"""The second opens with the text of an unknown token: a numeral, and every digit of one."""

PIECES = ("a", "b", " ", "\n", "<t>", "</t>", f"[{LONGEST}]", "[")
BEYOND = (LONGEST, LONGEST + 1, 5 * LONGEST, 1 << 40, NUMBER)


def drawn(draw: random.Random) -> list[Token]:
    found: list[Token] = []
    for _ in range(draw.randrange(7)):
        if draw.random() < 0.4:
            found.append(Token(draw.choice(BEYOND)))
        else:
            found += [Token(FIRST_BYTE + ord(each)) for each in draw.choice(PIECES)]
    return found


def test_the_short_way_finds_what_the_long_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(3)
    pairs = [(drawn(draw), drawn(draw), draw.random() < 0.3) for _ in range(6000)]

    def both() -> list[object]:
        return [
            (
                common_prefix(one, other, TEXT_OF, exact=exact),
                [list(without_reasoning(one, tags, TEXT_OF)) for tags in TAGS],
            )
            for one, other, exact in pairs
        ]

    short = both()
    monkeypatch.setattr(matching, "_apart", lambda *_: False)
    monkeypatch.setattr(matching, "_all_unknown", lambda _: False)

    assert both() == short


def test_prompts_of_a_trace_have_no_reasoning_and_stay_as_they_are() -> None:
    prompt = Rope([(7, 0, 100), (9, 3, 20)])

    assert without_reasoning(prompt, TAGS[0], TEXT_OF) is prompt  # type: ignore[arg-type, comparison-overlap]
    assert [0, 1] == list(without_reasoning(Rope.of(0, 2), TAGS[0], TEXT_OF))  # type: ignore[arg-type]
