"""Proposals that never merged: rings that trim (#999), states that are forgotten (#1253, #1254)."""

import re
from dataclasses import replace

import numpy as np
import pytest

from cachesim.engines import Engine
from cachesim.engines.family import Profile
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    ArraysCache,
    BatchRotatingKVCache,
    RotatingKVCache,
    can_trim_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.rules import SnapshotRules
from cachesim.engines.mlx_lm.server.engine import MlxLm
from cachesim.engines.mlx_lm.vocabulary import Insertion, RequestAdmitted
from cachesim.errors import ProfileError
from cachesim.model.presets import tiny
from cachesim.typed import of_kind
from cachesim.units import as_tokens
from tests.engines.asking import answer, is_cold
from tests.engines.mlx_lm.cache_kit import NEWEST, kv, rows, singly, tokens, write

R999 = FAMILY.rules(Profile.parse("mlx-lm@0.31.1-main+999")).caches


def ring(*pieces: list[int]) -> RotatingKVCache:
    cache = RotatingKVCache(R999, 4)
    for piece in pieces:
        write(cache, piece)
    return cache


def test_999_cuts_a_ring_in_temporal_order() -> None:
    cache = ring(*([token] for token in (1, 2, 3, 4, 5, 6)))

    assert 2 == cache.trim(2)
    assert ([3, 4], 4, 2, 2) == (rows(cache), cache.offset, cache.fill, cache.idx)


def test_999_keeps_the_oldest_rows_after_one_long_concat() -> None:
    cache = ring([1, 2, 3, 4, 5, 6])
    cache.trim(2)

    assert ([1, 2], 4) == (rows(cache), cache.offset)


def test_999_forgets_everything_at_a_full_trim_and_reports_the_window() -> None:
    cache = ring(*([token] for token in (1, 2, 3, 4, 5, 6)))

    assert 4 == cache.trim(100)
    assert (True, 2, 0) == (cache.empty(), cache.offset, cache.size())


def test_999_numbers_positions_and_fill_apart_when_restored() -> None:
    cache = ring(*([token] for token in (1, 2, 3, 4, 5, 6)))
    cache.trim(2)
    five = RotatingKVCache.from_state(cache.state, cache.meta_state, rules=R999)
    four = RotatingKVCache.from_state(cache.state, ("0", "4", "4", "2"), rules=R999)

    assert ("0", "4", "4", "2", "2") == cache.meta_state
    assert [(4, 2), (4, 4)] == [(each.offset, each.fill) for each in (five, four)]


def test_999_trims_turning_batches_too() -> None:
    batch = BatchRotatingKVCache(R999, 4, [0])
    singly(batch, [1, 2, 3, 4, 5])

    assert batch.is_trimmable()
    assert 1 == batch.trim(1)
    assert ([[2, 3, 4]], [4], 3) == (tokens(batch.keys), batch.offset.tolist(), batch.fill)
    assert 3 == batch.trim(9)
    assert batch.empty()
    assert batch.extract(0).empty()


@pytest.mark.parametrize("patch", ["1253", "1254"])
def test_a_state_that_is_reset_hides_behind_a_trim(patch: str) -> None:
    states, beside = ArraysCache(FAMILY.patch(patch).lay(NEWEST).caches, 1), kv(1, 2, 3)
    states[0] = np.array([[3]])

    assert can_trim_prompt_cache([states, beside])
    assert 0 == states.trim(0)
    assert not states.empty()
    assert 2 == trim_prompt_cache([states, beside], 2)
    assert (True, 1) == (states.empty(), beside.offset)


def test_a_patch_replaces_fields_and_leaves_the_release_alone() -> None:
    base = FAMILY.rules(Profile.parse("mlx-lm@0.31.3"))
    patched = FAMILY.rules(Profile.parse("mlx-lm@0.31.3+1254"))

    assert FAMILY.release("0.31.3").rules.caches == base.caches
    assert replace(base.caches, arrays_trim_resets=True) == patched.caches
    assert base.store == patched.store


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "mlx-lm@9.9",
            rf"no mlx-lm release '9\.9'; there are {re.escape(FAMILY.releases[0].name)}",
        ),
        ("mlx-lm@0.32.2+77", r"no mlx-lm patch '77'; there are 923, 929"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(text: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        FAMILY.rules(Profile.parse(text))


def test_the_mends_of_929_add_up() -> None:
    rules = FAMILY.rules(Profile.parse("mlx-lm@after-906+923+929.1+929.3")).server

    assert SnapshotRules(always_the_last_boundary=True, trims_each_layer_it_can=True) == (
        rules.snapshots
    )


PROMPT = as_tokens(range(10, 20))


def server(release: str = "0.32.2", preset: str = "dense", draft: str = "self") -> MlxLm:
    options = {"tokenizer": "words", "draft_model": draft, "num_draft_tokens": 2}
    made = Engine.create(f"mlx-lm@{release}", model=tiny(preset, vocabulary=64), options=options)
    return of_kind(MlxLm, made)


@pytest.mark.parametrize("release", ["0.30.7", "0.31.1", "0.31.3", "0.32.2"])
@pytest.mark.parametrize("draft", ["self", "dense", "recurrent"])
def test_the_first_answer_is_the_models_own_whatever_is_drafted(release: str, draft: str) -> None:
    engine = server(release, draft=draft)
    reply = answer(engine, PROMPT, 7)

    assert is_cold(engine, reply)
    assert 7 == len(reply.generated)
    assert ["single"] == [e.path for e in engine.events if isinstance(e, RequestAdmitted)]


@pytest.mark.parametrize(
    ("drafts", "sound"), [(((40, 41), (42, 43)), True), (((40, 50), (42, 50)), False)]
)
def test_a_reply_that_ends_with_a_token_of_the_models_own_is_stored_without_it(
    drafts: tuple[tuple[int, ...], ...], sound: bool
) -> None:
    engine = server()
    said = as_tokens([40, 41, 44, 42, 43] if sound else [40, 41, 42, 43])
    forced = tuple(map(as_tokens, drafts))
    reply = answer(engine, PROMPT, len(said), reply=said, drafts=forced)
    stored = next(event for event in engine.events if isinstance(event, Insertion))
    next_turn = answer(engine, (*PROMPT, *said, *PROMPT), 2)

    assert is_cold(engine, reply)
    assert (len(PROMPT) + len(said), sound) == (stored.length, stored.state_is_key)
    assert (len(PROMPT) + len(said), sound) == (next_turn.cached, is_cold(engine, next_turn))


@pytest.mark.parametrize(
    ("release", "error"), [("0.31.1", None), ("0.31.2", "ValueError"), ("0.32.2", "ValueError")]
)
def test_models_that_cannot_be_trimmed_are_refused_since_1109(
    release: str, error: str | None
) -> None:
    engine = server(release, "hybrid")
    drafts = (as_tokens([50, 50]),) * 3
    reply = answer(engine, PROMPT, 3, reply=as_tokens([40, 41, 42]), drafts=drafts)

    assert error == reply.error
    assert error is not None or not is_cold(engine, reply)
