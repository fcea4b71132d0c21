"""Batches that both contexts decode: a drafting head is fed in pieces as at once."""

from cachesim.engines import Engine, Request
from cachesim.engines.ik_llama.server import IkLlama
from cachesim.engines.ik_llama.slot import Slot
from cachesim.model.presets import preset
from cachesim.units import Token
from tests.engines.ik_llama.worked_kit import SEED_ERA, run_of


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
