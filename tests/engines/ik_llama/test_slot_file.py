"""Slots on disk: whole ones come back, damaged ones are refused."""

import pytest

from cachesim.engines import Engine, Request
from cachesim.engines.ik_llama.server import IkLlama
from cachesim.model.presets import preset
from cachesim.units import Tokens, as_tokens

PROMPT = as_tokens(range(300, 400))


class Shelf(dict[str, bytes]):
    """A place for bytes."""

    def put(self, name: str, data: bytes) -> None:
        self[name] = data

    def get(self, name: str, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
        return super().get(name, default)


def server(shelf: Shelf, model: str = "hybrid-delta") -> IkLlama:
    made = Engine.create(
        "ik_llama.cpp@d2da6da05", model=preset(model), arithmetic="ring", store=shelf
    )
    assert isinstance(made, IkLlama)
    return made


def ask(engine: IkLlama, prompt: Tokens) -> int | None:
    ticket = engine.submit(Request(prompt=prompt, predict=4))
    engine.run()
    reply = engine.reply(ticket)
    assert reply is not None
    return reply.cached


def test_a_saved_slot_goes_on_in_another_server() -> None:
    shelf = Shelf()
    first = server(shelf)
    ask(first, PROMPT)
    first.slot_save(0, "a")
    held = first.slots[0].cache_tokens
    second = server(shelf)
    second.slot_restore(0, "a")

    assert held == second.slots[0].cache_tokens
    assert len(held) == ask(second, (*held, *PROMPT[:9]))


@pytest.mark.parametrize("patch", ["", "+1889"])
def test_c3_a_restored_slot_beside_an_empty_companion_is_trimmed_without_refusal(
    patch: str,
) -> None:
    shelf = Shelf()
    profile = "ik_llama.cpp@d2da6da05" + patch
    first = server(shelf, "hybrid-mtp")
    ask(first, PROMPT)
    first.slot_save(0, "a")
    held = first.slots[0].cache_tokens
    fresh = Engine.create(
        profile,
        model=preset("hybrid-mtp"),
        arithmetic="ring",
        options={"companion": "attn"},
        store=shelf,
    )
    assert isinstance(fresh, IkLlama)
    fresh.slot_restore(0, "a")

    assert len(held) == ask(fresh, (*held, *PROMPT[:9]))
    assert "full-reset" not in [event.name() for event in fresh.events]
