"""Requests of a log on servers with fewer slots, and as scenarios of releases with fewer fields."""

import pytest

from cachesim.engines.tokens import Rope
from cachesim.lab.logs.extract import Origin, scenario_of
from cachesim.lab.logs.player import Player, ReplayRequest
from cachesim.model.presets import preset


def test_a_slot_that_a_server_lacks_is_not_filled_from_a_file() -> None:
    player = Player("llama.cpp@b9093", preset("dense"), {"parallel": 1, "ctx_size": 512})
    player.read_back("1", 3)

    assert [[]] == [list(each.prompt.tokens) for each in player.engine.server.slots]


@pytest.mark.parametrize(("release", "fields"), [("b9093", [None]), ("b11549", ["message_spans"])])
def test_a_scenario_has_the_fields_that_its_release_takes(
    release: str, fields: list[str | None]
) -> None:
    request = ReplayRequest(
        number=0, prompt=Rope.of(1, 20), reply=Rope.of(2, 4), slot=-1, user_starts=(5,)
    )
    origin = Origin("log", f"llama.cpp@{release}", preset("dense"), {}, "dense", None)
    (step,) = scenario_of(origin, [request], 0, None).step

    assert fields == (list(step.options) if step.options else [None])
