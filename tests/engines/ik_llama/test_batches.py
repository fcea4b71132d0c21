"""What is decoded in which batch, by both contexts: derived by hand from upstream.

No real server wrote these figures (there is no wheel of it): each follows from `update_slots`,
`batch_pending_prompt`, `process_batch_tokens` and `common_speculative_draft` of both commits.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from cachesim.engines import Engine, Request
from cachesim.engines.ik_llama.context import BatchToken, Context
from cachesim.engines.ik_llama.server import IkLlama
from cachesim.engines.ik_llama.slot import Slot
from cachesim.engines.ik_llama.speculative import AttentionCompanion
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.units import Pos, SeqId, Token
from tests.engines.ik_llama.worked_kit import SEED_ERA, Played, run_of


def watched(played: Played) -> list[str]:
    """Every decode from now on as `first-last`, of the companion in brackets; what it forgets."""
    primary, companion, log = played.server.primary, played.server.companion, list[str]()
    assert isinstance(companion, AttentionCompanion)
    decode, feed, seq_rm = primary.decode, companion.decode, companion.seq_rm

    def run(first: int, count: int) -> str:
        return f"{first}-{first + count - 1}" if count > 1 else str(first)

    def decoding(batch: Sequence[BatchToken], *more: Any, **named: Any) -> Any:
        log.append(run(batch[0].pos, len(batch)))
        return decode(batch, *more, **named)

    def feeding(tokens: Sequence[Token], first: Pos, hidden: Any) -> Any:
        log.append(f"({run(first, len(tokens))})")
        return feed(tokens, first, hidden)

    def removing(p0: int, p1: int) -> bool:
        log.append(f"(-{p0}:{p1 if p1 >= 0 else ''})")
        return seq_rm(p0, p1)

    primary.decode = decoding  # type: ignore[method-assign]
    companion.decode, companion.seq_rm = feeding, removing  # type: ignore[method-assign]
    return log


LATER = "ik_llama.cpp@8337e4cd3"
READ = "(-0:) 0-3 (0-3) (-4:) 4-8 (4-8) (9) (10) (11) (-10:14) 9-12"
"""A prompt of 9, a checkpoint before its last 5, and a first draft of three behind token 9."""

DRAFTS = (run_of(7001, 2) + run_of(29_000, 1), run_of(7004, 1))


@pytest.mark.parametrize(
    ("profile", "mode", "forced", "steps"),
    [
        (
            SEED_ERA,
            "auto",
            False,
            "(-9:) (9) (11) (-10:13) 10-12 (-10:) (10) 11-12 (-11:) (11) 12",
        ),
        (SEED_ERA, "cpu", True, "9-11 (-9:) (9-11) 12-13 (-12:) (12-13)"),
        (LATER, "auto", True, "(-10:) (10-12) 12-13 (-13:) (13-14)"),
        (
            LATER,
            "cpu",
            False,
            "9 (-10:) (10) (11) (-10:13) 10-12 10 (-11:) (11) 11-12 11 (-12:) (12) 12",
        ),
    ],
)
def test_drafts_go_through_both_contexts_position_by_position(
    profile: str, mode: str, forced: bool, steps: str
) -> None:
    """A step that rejects drafts keeps one token, or two of three where they are forced."""
    played = Played("hybrid-mtp", profile, companion="attn", draft_max=3, recurrent_ckpt_mode=mode)
    log = watched(played)
    assert -1 == played.server.companion.tail  # type: ignore[union-attr]
    played.server.submit(
        Request(
            prompt=run_of(300, 9),
            predict=6 if forced else 5,
            reply=run_of(7000, 6) if forced else None,
            drafts=DRAFTS if forced else None,
        )
    )
    played.server.run()

    assert f"{READ} {steps}" == " ".join(log)


def test_a_table_of_cells_is_as_long_as_the_context_or_as_the_slots() -> None:
    sizes = [
        Played(model, parallel=slots, ctx_size=64).server.primary.cells.size
        for model in ("dense", "hybrid", "recurrent")
        for slots in (1, 3)
    ]

    assert [64, 64, 64, 64, 1, 3] == sizes


@pytest.mark.parametrize(("tokens", "head"), [(5, 5), (8, 0)])
def test_a_restored_state_leaves_the_search_behind_it_or_at_the_start(
    tokens: int, head: int
) -> None:
    context = Context(build(preset("dense"), "ring"), n_ctx=8, n_ubatch=8, n_seq_max=1)
    context.decode([BatchToken(Token(300 + at), Pos(at), SeqId(0)) for at in range(tokens)])

    assert context.restore(SeqId(0), context.save(SeqId(0), partial=False))
    assert head == context.cells.head


@pytest.mark.parametrize(("shared", "cached"), [(11, 0), (12, 12), (13, 13)])
def test_a_parked_conversation_is_loaded_from_a_shortest_prefix_on(
    shared: int, cached: int
) -> None:
    played = Played("dense", SEED_ERA + "+1877", cache_ram_reuse_n_min=12, cache_ram_similarity=0.1)
    for prompt in (run_of(300, 100), run_of(600, 100)):
        played.ask(prompt, run_of(900, 1))

    assert cached == played.ask(run_of(300, shared) + run_of(1000, 3), run_of(900, 1))[0]


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
