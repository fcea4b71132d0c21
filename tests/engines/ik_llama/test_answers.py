"""Answers from cache against cold answers, by release and patch."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines import Engine, Request
from cachesim.engines.chat import FIRST_BYTE
from cachesim.engines.ik_llama import slot as matching
from cachesim.engines.ik_llama.server import IkLlama
from cachesim.engines.ik_llama.slot import Slot, common_prefix, texts, without_reasoning
from cachesim.engines.tokens import LONGEST, Rope
from cachesim.errors import OptionError
from cachesim.lab.real.vectors.servers import mismatch, play
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.units import Token, Tokens, as_tokens
from tests.engines.asking import is_cold
from tests.engines.ik_llama.worked_kit import BIG, SEED_ERA, Played, Steps, run_of

a = run_of(19000, 1400)


def test_a_slot_too_small_to_shift_is_refused() -> None:
    """A shift would keep -2 of 2 tokens: the token list grew by half with each token."""
    with pytest.raises(OptionError, match="4 keeps a negative number of tokens"):
        Played("dense", ctx_size=7, parallel=2)

    assert [4, 4] == [each.n_ctx for each in Played("dense", ctx_size=8, parallel=2).server.slots]


FILE = Path(__file__).parents[2] / "vectors" / "server-ik-d2da6da05.jsonl.gz"


def workloads() -> list[dict[str, Any]]:
    with gzip.open(FILE, "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workload", workloads(), ids=lambda workload: workload["id"])
def test_every_request_agrees_with_the_real_server(workload: dict[str, Any]) -> None:
    assert mismatch(workload) is None


@pytest.mark.thorough
@pytest.mark.thorough
def test_with_one_slot_no_order_of_arrival_is_needed() -> None:
    alone = [each for each in workloads() if each["options"]["parallel"] == 1]

    assert 125 == len(alone)
    assert [] == [each["id"] for each in alone if play(each, ()) is not None]


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
