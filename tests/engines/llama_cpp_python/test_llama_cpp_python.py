"""`Llama` call by call: matches, refused cuts, caches, drafts; worked out by hand."""

import pytest

from cachesim.engines import Profile
from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.llama_cpp_python.server import LlamaCppPython
from cachesim.engines.llama_cpp_python.states import lookup
from cachesim.model.presets import tiny
from cachesim.testing.search import search
from cachesim.units import as_tokens
from cachesim.verify.oracle import cold_logits

RELEASES = ("0.3.23", "0.3.31", "0.3.36")


def opened(release: str = "0.3.36", model: str = "dense", **options: object) -> LlamaCppPython:
    engine = Engine.create(
        f"llama-cpp-python@{release}", model=tiny(model), arithmetic="ring", options=options
    )
    assert isinstance(engine, LlamaCppPython)
    return engine


def called(engine: LlamaCppPython, *tokens: int, predict: int = 1) -> Reply:
    ticket = engine.submit(Request(prompt=as_tokens(tokens), predict=predict))
    engine.run()
    engine.check_integrity()
    reply = engine.reply(ticket)
    assert reply is not None
    return reply


def run(first: int, count: int) -> range:
    return range(first, first + count)


def names(engine: LlamaCppPython) -> list[str]:
    return [each.name() for each in engine.events]


def right(engine: LlamaCppPython, reply: Reply) -> bool:
    rows = range(len(reply.prompt) - 1, len(reply.prompt) + len(reply.generated) - 1)
    tokens = (*reply.prompt, *reply.generated)
    return bool((reply.logits == cold_logits(engine.network, tokens, rows=rows)).all())


@pytest.mark.parametrize(("release", "cached"), [("0.3.31", 19), ("0.3.36", 20)])
def test_the_same_prompt_again_is_sampled_at_once_since_2306(release: str, cached: int) -> None:
    engine = opened(release)
    called(engine, *run(300, 20))

    again = called(engine, *run(300, 20))

    assert (cached, True) == (again.cached, right(engine, again))


def test_a_restored_state_evaluates_its_last_token_again() -> None:
    engine = opened()
    called(engine, *run(300, 20))
    engine.slot_save(0, "s")
    engine.slot_restore(0, "s")

    assert 19 == called(engine, *run(300, 20)).cached


@pytest.mark.parametrize(
    ("release", "told"),
    [("0.3.23", "cut-refused"), ("0.3.31", "instance-reset"), ("0.3.36", "cut-refused")],
)
def test_a_hybrid_is_reset_where_prompts_part(release: str, told: str) -> None:
    engine = opened(release, "hybrid")
    called(engine, *run(300, 20))

    other = called(engine, *run(300, 10), *run(400, 5))

    assert (0, True) == (other.cached, right(engine, other))
    assert told in names(engine)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("cache", "expected"), [("none", True), ("ram", False), ("disk", False)])
def test_a_restored_window_loses_keys_that_a_rewind_needs(
    release: str, cache: str, expected: bool
) -> None:
    engine = opened(release, "swa", cache=cache)
    for tokens in (run(300, 70), run(400, 40), run(300, 70)):
        assert right(engine, called(engine, *tokens, predict=4))

    branch = called(engine, *run(300, 10), *run(450, 5), predict=4)

    assert (10, expected) == (branch.cached, right(engine, branch))


def test_the_capacity_evicts_what_was_used_longest_ago() -> None:
    engine = opened(cache="ram")
    for first in (300, 350, 400):
        called(engine, first, *run(first, 20))
    sizes = [each["bytes"] for each in engine.books()["prompt_cache"]]
    small = opened(cache="ram", capacity_bytes=sum(sizes) - 1)
    for first in (300, 350, 300, 400):
        called(small, first, *run(first, 20))

    assert small.cache is not None
    assert [300, 400] == [key[0] for key in small.cache.entries]


def test_a_disk_cache_deletes_what_it_looks_up() -> None:
    engine = opened(cache="disk")
    called(engine, *run(300, 20))
    called(engine, *run(300, 20), *run(400, 5))

    assert "state-taken" in names(engine)
    assert 1 == len(engine.books()["prompt_cache"])


def test_a_disk_cache_outlives_its_instance() -> None:
    for cache, cached in (("disk", 19), ("ram", 0)):
        engine = opened(cache=cache)
        called(engine, *run(300, 20))
        engine.restart()
        assert cached == called(engine, *run(300, 20)).cached


def test_drafts_are_verified_and_change_no_answer() -> None:
    engine = opened(draft_model="prompt-lookup")
    reply = called(engine, *run(300, 8), *run(300, 8), predict=8)

    assert right(engine, reply)
    assert reply.drafted is not None
    assert reply.accepted is not None
    assert 0 <= reply.accepted <= reply.drafted


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"draft_model": "prompt-lookup", "n_batch": 32}, "ValueError"),
        ({"draft_model": "prompt-lookup", "n_batch": 32, "logits_all": True}, None),
        ({"n_ctx": 30}, "ValueError"),
    ],
)
def test_arrays_that_are_too_short_raise(options: dict[str, object], error: str | None) -> None:
    assert error == called(opened(**options), *run(300, 40)).error


def test_rejected_drafts_fail_on_a_hybrid() -> None:
    engine = opened(model="hybrid", draft_model="prompt-lookup")
    prompt = as_tokens([*run(300, 20), 300, 301])
    ticket = engine.submit(Request(prompt=prompt, reply=as_tokens((302, 450, 451))))
    engine.run()
    reply = engine.reply(ticket)

    assert reply is not None
    assert ("RuntimeError", "llama_decode returned -1") == (reply.error, reply.message)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [((1, 2, 3, 1, 2), [3, 1, 2]), ((1, 2, 3, 4, 3), [4, 3]), ((1, 2, 3), []), ((7,), [])],
)
def test_the_first_place_of_the_last_n_gram_is_continued(
    tokens: tuple[int, ...], expected: list[int]
) -> None:
    assert expected == lookup(as_tokens(tokens), 2, 10)


def test_a_search_finds_the_lost_window_in_four_requests() -> None:
    profile = Profile.parse("llama-cpp-python@0.3.36")
    found = search(profile, "swa", examples=40).counterexample

    assert found is not None
    assert len(found.scenario.step) <= 4
    assert "ram" == found.scenario.engine.options["cache"]
