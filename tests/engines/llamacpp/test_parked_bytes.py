"""Bytes of parked prompts and their checkpoints, beside what the real servers' logs count.

`parked.csv` holds the number of tokens that the prompt cache could hold by each wheel's log, after
the same requests: the limit in bytes by the bytes of an average token, so exact to a byte.
"""

import csv
from pathlib import Path
from typing import Final

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.model.presets import preset
from cachesim.units import as_tokens

FILE: Final = Path(__file__).with_name("parked.csv")
LENGTHS: Final = (100, 700, 300, 1500, 33, 900)
REPLY: Final = as_tokens([300, 301, 302, 303])

Row = tuple[str, str, str, int]


def rows() -> list[Row]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return [(*fields, int(parked)) for *fields, parked in list(csv.reader(file))[1:]]  # type: ignore[misc]


@pytest.mark.parametrize("release", FAMILY.real())
def test_what_is_parked_has_the_bytes_that_the_wheel_counts(release: str) -> None:
    for own, model, types, parked in rows():
        if own == release:
            assert (model, types, parked) == (model, types, room_for(release, model, types))


def room_for(release: str, model: str, types: str) -> int:
    """How many tokens the prompt cache could hold, by what it holds after six requests."""
    options: dict[str, object] = {"ctx_size": 8192, "batch_size": 256, "ubatch_size": 64}
    options |= {"cache_type_k": types, "cache_type_v": types}
    if model == "hybrid-mtp":
        options["spec_type"] = "draft-mtp"
    engine = Engine.create(
        f"llama.cpp@{release}", model=preset(model), options=options, arithmetic="counts"
    )
    assert isinstance(engine, LlamaCpp)
    first = 265
    for length in LENGTHS:
        prompt = as_tokens([first + at % 40 for at in range(length)])
        engine.submit(Request(prompt=prompt, predict=len(REPLY), reply=REPLY))
        engine.run()
        first += 40
    cache = engine.server.cache
    assert cache is not None
    return cache.token_limit()


def test_every_release_and_preset_was_measured() -> None:
    measured = {(release, model) for release, model, _, _ in rows()}

    assert set(FAMILY.real()) == {release for release, _ in measured}
    assert {"dense", "swa", "recurrent", "hybrid", "hybrid-delta", "hybrid-swa", "hybrid-mtp"} == {
        model for _, model in measured
    }
