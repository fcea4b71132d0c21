"""Slots on disk: whole ones come back, damaged ones are refused."""

from dataclasses import replace

import pytest

from cachesim.engines import Engine, Request
from cachesim.engines.ik_llama.options import MOST_CELLS
from cachesim.engines.ik_llama.server import IkLlama
from cachesim.engines.ik_llama.slot_file import decode, encode
from cachesim.errors import BlobError
from cachesim.model.presets import preset
from cachesim.units import Pos, Tokens, as_tokens

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


def test_an_erased_slot_holds_nothing() -> None:
    engine = server(Shelf())
    ask(engine, PROMPT)
    engine.slot_erase(0)

    assert 0 == ask(engine, PROMPT)


@pytest.mark.parametrize("at", [0, 5, 9, 60, -1])
def test_a_damaged_file_is_refused(at: int) -> None:
    shelf = Shelf()
    engine = server(shelf)
    ask(engine, PROMPT)
    engine.slot_save(0, "a")
    data = bytearray(shelf["a"])
    data[at] ^= 1

    with pytest.raises(BlobError):
        decode(bytes(data))


@pytest.mark.parametrize("key", ["positions", "born"])
@pytest.mark.parametrize("position", [MOST_CELLS, 2**31 - 1])
def test_a_position_that_no_context_reaches_is_damage(key: str, position: int) -> None:
    shelf = Shelf()
    engine = server(shelf)
    ask(engine, PROMPT)
    engine.slot_save(0, "a")
    saved = decode(shelf["a"])
    cells = (*getattr(saved.state, key)[:-1], Pos(position))

    with pytest.raises(BlobError, match=f"{position} is no whole number that could stand there"):
        decode(encode(replace(saved, state=replace(saved.state, **{key: cells}))))


def test_a_missing_file_is_an_error_reply() -> None:
    engine = server(Shelf())
    reply = engine.reply(engine.slot_restore(0, "nothing"))

    assert reply is not None
    assert "invalid_request_error" == reply.error


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
