"""A router: which models are loaded, what ends with a model's server, and who waits for one."""

from collections.abc import Sequence
from typing import Any

import pytest

from cachesim.engines.base import Engine, Request, Ticket
from cachesim.errors import OptionError
from cachesim.model.presets import preset
from cachesim.units import as_tokens

PROMPT = as_tokens(range(300, 360))
RELEASES = ("b8672", "b10229", "b10566", "b10809", "b11063", "b11549")


def opened(release: str = "b11549", models: str = "bc", **options: int) -> Engine:
    return Engine.create(
        f"llama.cpp@{release}",
        model=preset("dense"),
        models={name: preset("dense") for name in models},
        options=options,
        arithmetic="ring",
    )


def asked(server: Engine, model: str = "", predict: int = 2) -> Ticket:
    reply = as_tokens([265] * predict)
    return server.submit(Request(prompt=PROMPT, predict=predict, reply=reply, model=model))


def answered(server: Engine, models: Sequence[str]) -> list[Any]:
    """Tokens reused for each of these models, one request after the other."""
    found = []
    for model in models:
        ticket = asked(server, model)
        server.run()
        server.check_integrity()
        found.append(reused(server, ticket))
    return found


def reused(server: Engine, ticket: Ticket) -> Any:
    reply = server.reply(ticket)
    return None if reply is None else reply.error or reply.cached


@pytest.mark.parametrize("release", RELEASES)
def test_the_least_recently_used_model_is_unloaded(release: str) -> None:
    server = opened(release, models_max=2)

    assert answered(server, ["", "b", "", "c", "", "b"]) == [0, 0, 59, 0, 59, 0]
    assert [e.as_dict()["model"] for e in server.events if e.name() == "model-unloaded"] == [
        "[models.b]",
        "[models.c]",
    ]


@pytest.mark.parametrize(("limit", "found"), [(0, [59, 59, 59]), (1, [0, 0, 0]), (3, [59, 59, 59])])
def test_a_model_keeps_what_it_held_while_it_is_loaded(limit: int, found: list[int]) -> None:
    server = opened(models_max=limit)
    answered(server, ["", "b", "c"])

    assert answered(server, ["", "b", "c"]) == found


@pytest.mark.parametrize("release", RELEASES)
def test_a_busy_model_is_ended_until_requests_wait(release: str) -> None:
    server = opened(release, models_max=1)
    first = asked(server, predict=40)
    server.step()
    other = asked(server, "b")
    server.run()

    assert reused(server, first) == ("no_answer" if release in RELEASES[:2] else 0)
    assert reused(server, other) == 0


def test_requests_that_wait_are_served_in_order_of_their_models() -> None:
    server = opened(models_max=1)
    asked(server, predict=9)
    waiting = [asked(server, model) for model in "bcb"]
    server.run()

    assert [reused(server, each) for each in waiting] == [0, 0, 59]
    loaded = [e.as_dict()["model"] for e in server.events if e.name() == "model-loaded"]
    assert loaded == ["[model]", "[models.b]", "[models.c]"]


@pytest.mark.parametrize(("release", "found"), [("b11063", "no_answer"), ("b11549", 0)])
def test_a_model_that_is_given_up_takes_no_request(release: str, found: Any) -> None:
    server = opened(release, models_max=1)
    answered(server, [""])
    other, again = asked(server, "b"), asked(server)
    server.run()

    assert (reused(server, other), reused(server, again)) == (0, found)
    losses = [each.rule for each in getattr(server.reply(again), "losses", ())]
    assert losses == ([] if found else ["model-unloaded"])


def test_a_client_that_goes_away_leaves_the_queue() -> None:
    server = opened(models_max=1)
    asked(server, predict=9)
    server.step()
    server.cancel(asked(server, "b"))
    server.run()

    assert answered(server, [""]) == [59]


def test_a_restarted_router_has_loaded_nothing() -> None:
    server: Any = opened(models_max=2)
    answered(server, ["", "b"])
    server.restart()

    assert server.books() == {"slots": [], "prompt_cache": []}
    assert answered(server, ["", "b"]) == [0, 0]


def test_sleeping_models_stay_loaded_and_hold_nothing() -> None:
    server: Any = opened(models_max=2, sleep_idle_seconds=1)
    answered(server, ["", "b"])
    server.sleep()

    assert answered(server, ["b", "", "c", ""]) == [0, 0, 0, 59]


def test_slots_of_all_loaded_models_are_listed() -> None:
    server: Any = opened(models_max=2)
    answered(server, ["", "b"])

    assert [(slot["model"], slot["id"]) for slot in server.books()["slots"]] == [("", 0), ("b", 0)]
    assert server.amounts().attention == 2 * 61


def test_what_a_router_does_not_do_is_refused() -> None:
    server: Any = opened()
    with pytest.raises(OptionError, match="there is no model 'd'"):
        asked(server, "d")
    with pytest.raises(OptionError, match="names no model"):
        server.set_lora([])
    server.slot_save(0, "file")
    with pytest.raises(OptionError, match="a file of another model"):
        server.slot_restore(0, "file", "b")
