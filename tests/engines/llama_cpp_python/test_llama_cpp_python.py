"""`Llama` call by call: matches, refused cuts, caches, drafts; worked out by hand."""

import numpy as np
import pytest

from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.llama_cpp_python.llama import LlamaCppPython
from cachesim.engines.llama_cpp_python.server import CallServer
from cachesim.engines.llama_cpp_python.states import lookup
from cachesim.model.presets import tiny
from cachesim.typed import of_kind, there_is
from cachesim.units import as_tokens
from tests.engines.asking import answer, is_cold, names

RELEASES = ("0.3.23", "0.3.31", "0.3.35", "0.3.36")


def opened(release: str = "0.3.36", model: str = "dense", **options: object) -> LlamaCppPython:
    profile = f"llama-cpp-python@{release}"
    made = Engine.create(profile, model=tiny(model), arithmetic="ring", options=options)
    return of_kind(LlamaCppPython, made)


def called(engine: CallServer, *tokens: int, predict: int = 1) -> Reply:
    return answer(engine, tokens, predict)


def embedded(engine: LlamaCppPython, *tokens: int) -> Reply:
    options = {"endpoint": "embedding"}
    ticket = engine.submit(Request(prompt=as_tokens(tokens), options=options))
    engine.run()
    return there_is(engine.reply(ticket))


def loaded(engine: LlamaCppPython) -> Reply:
    ticket = engine.slot_restore(0, "s")
    engine.run()
    return there_is(engine.reply(ticket))


def run(first: int, count: int) -> range:
    return range(first, first + count)


@pytest.mark.parametrize(("release", "cached"), [("0.3.31", 19), ("0.3.36", 20)])
def test_the_same_prompt_again_is_sampled_at_once_since_2306(release: str, cached: int) -> None:
    engine = opened(release)
    called(engine, *run(300, 20))

    again = called(engine, *run(300, 20))

    assert (cached, True) == (again.cached, is_cold(engine, again))


def test_logits_of_a_decode_outlive_a_batch_that_is_refused() -> None:
    """The array of tokens ends at the context, so the memory holds one more than the instance."""
    engine = opened(model="recurrent", n_ctx=5, logits_all=True)
    full = called(engine, *run(265, 5), predict=2)
    refused = called(engine, *run(265, 5), predict=2)
    held = called(engine, *run(265, 5))

    assert ("ValueError", "RuntimeError", None) == (full.error, refused.error, held.error)
    assert (5, False) == (held.cached, is_cold(engine, held))


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

    assert (0, True) == (other.cached, is_cold(engine, other))
    assert told in names(engine)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("cache", "expected"), [("none", True), ("ram", False), ("disk", False)])
def test_a_restored_window_loses_keys_that_a_rewind_needs(
    release: str, cache: str, expected: bool
) -> None:
    engine = opened(release, "swa", cache=cache)
    for tokens in (run(300, 70), run(400, 40), run(300, 70)):
        assert is_cold(engine, called(engine, *tokens, predict=4))

    branch = called(engine, *run(300, 10), *run(450, 5), predict=4)

    assert (10, expected) == (branch.cached, is_cold(engine, branch))


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

    assert is_cold(engine, reply)
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
    reply = there_is(engine.reply(ticket))

    assert ("RuntimeError", "llama_decode returned -1") == (reply.error, reply.message)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [((1, 2, 3, 1, 2), [3, 1, 2]), ((1, 2, 3, 4, 3), [4, 3]), ((1, 2, 3), []), ((7,), [])],
)
def test_the_first_place_of_the_last_n_gram_is_continued(
    tokens: tuple[int, ...], expected: list[int]
) -> None:
    assert expected == lookup(np.array(tokens), 2, 10)


@pytest.mark.parametrize("release", RELEASES)
def test_an_embedding_leaves_nothing_of_a_prompt(release: str) -> None:
    engine = opened(release, embedding=True)
    called(engine, *run(300, 20))

    assert None is embedded(engine, *run(400, 40)).error
    again = called(engine, *run(300, 20), predict=4)

    assert (0, True) == (again.cached, is_cold(engine, again))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", ["dense", "hybrid"])
def test_a_failed_embedding_leaves_tokens_that_the_memory_has_lost(
    release: str, model: str
) -> None:
    engine = opened(release, model, embedding=True)
    called(engine, *run(300, 20))

    failed = embedded(engine)
    longer = called(engine, *run(300, 21), *run(400, 5), predict=4)

    assert ("RuntimeError", "llama_decode returned -1") == (failed.error, failed.message)
    assert (20, False) == (longer.cached, is_cold(engine, longer))


@pytest.mark.parametrize(("release", "error"), [("0.3.23", "RuntimeError"), ("0.3.31", None)])
def test_a_text_must_fit_the_share_of_a_sequence_until_2217(
    release: str, error: str | None
) -> None:
    assert error == embedded(opened(release, embedding=True), *run(0, 300)).error


def test_an_instance_without_embeddings_refuses_to_embed() -> None:
    assert "Llama model must be created with embedding=True to call this method" == (
        embedded(opened(), 300).message
    )


@pytest.mark.parametrize(
    ("other", "error", "believed"),
    [
        ({"n_ctx": 1024}, None, 300),
        ({"logits_all": True}, None, 300),
        ({"n_batch": 64}, "ValueError", 0),
        ({"n_ctx": 256}, "RuntimeError", 300),
        ({"type_k": "f32"}, "RuntimeError", 300),
        ({"embedding": True, "n_ubatch": 64}, None, 300),
    ],
)
def test_a_state_of_an_instance_with_other_arguments(
    other: dict[str, object], error: str | None, believed: int
) -> None:
    engine = opened()
    called(engine, *run(0, 300))
    engine.slot_save(0, "s")
    engine.run()
    engine.reopen(other)

    refused, held = loaded(engine), engine.n_tokens
    after = called(engine, *run(0, 200), *run(400, 5), predict=4)

    assert (error, believed) == (refused.error, held)
    assert (min(believed, 200), error != "RuntimeError") == (after.cached, is_cold(engine, after))


def test_a_longer_context_keeps_the_shorter_array_of_a_loaded_state() -> None:
    engine = opened()
    called(engine, *run(0, 300))
    engine.slot_save(0, "s")
    engine.run()
    engine.reopen({"n_ctx": 1024})
    loaded(engine)

    assert "could not broadcast" in called(engine, *run(0, 512), *run(0, 8)).message


@pytest.mark.parametrize("release", RELEASES)
def test_a_state_of_another_architecture_is_refused(release: str) -> None:
    dense, hybrid = opened(release), opened(release, "hybrid")
    called(dense, *run(300, 20))
    dense.slot_save(0, "s")
    dense.run()
    hybrid._states = dense._states

    refused = loaded(hybrid)
    same = called(hybrid, *run(300, 21), predict=4)

    assert "Failed to set llama state data" == refused.message
    assert (20, False) == (same.cached, is_cold(hybrid, same))


def test_an_instance_of_another_alias_keeps_what_lies_on_disk() -> None:
    engine = opened(cache="disk")
    called(engine, *run(300, 20))
    engine.reopen({"cache": "ram"})
    called(engine, *run(400, 20))
    engine.reopen({"cache": "disk"})

    assert 19 == called(engine, *run(300, 20)).cached
