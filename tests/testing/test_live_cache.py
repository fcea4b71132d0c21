"""Somebody writes a cache, and is told which law it breaks, and how, in real keys and values."""

from functools import partial
from typing import Any, get_args

import numpy as np
import pytest

from cachesim.errors import InputError
from cachesim.model.presets import tiny
from cachesim.testing import (
    BrokenLawError,
    Request,
    Server,
    VacuousCheckError,
    check_live_cache,
    check_memory,
)
from cachesim.testing.contents import DataType, answer, joined, packed, rows_of, split, unpacked
from cachesim.testing.examples import BlockPool
from cachesim.testing.live_player import shown
from cachesim.testing.room import size_of
from cachesim.units import as_tokens
from cachesim.verify.oracle import cold_logits
from tests.fixtures import Patch
from tests.testing import planted_pools
from tests.testing.planted_caches import (
    PLANTED,
    RIGHT,
    Blocks,
    EvictedStays,
    NoRope,
    OneSlot,
    OnlyLastToken,
    OwnList,
    SaltJoined,
    ShortImageHash,
    States,
    Trimmed,
    Unpinned,
)

PRESETS = ("dense", "swa", "recurrent", "hybrid", "hybrid-delta", "hybrid-swa")
PROMPT = as_tokens(range(300, 340))


SLOW = {EvictedStays, SaltJoined, ShortImageHash, Trimmed, Unpinned}
"""Those that take seconds to shrink: `make check` finds them."""

SLOWEST = {NoRope, OneSlot, OwnList}
"""Those of half a minute: `make nightly` finds them."""

PARAMETERS = [
    pytest.param(
        each,
        marks=[pytest.mark.thorough] * (each in SLOW | SLOWEST)
        + [pytest.mark.nightly] * (each in SLOWEST),
    )
    for each in PLANTED
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("planted", PARAMETERS, ids=lambda each: each.__name__)
def test_a_planted_bug_is_found(planted: type) -> None:
    law, told = PLANTED[planted]

    with pytest.raises(BrokenLawError) as error:
        check_live_cache(planted, examples=300, **told)

    assert error.value.law.endswith(law)
    assert len(error.value.story) <= 10


@pytest.mark.thorough
@pytest.mark.nightly
@pytest.mark.parametrize("planted", planted_pools.PLANTED, ids=lambda each: each.__name__)
def test_a_bug_of_counted_room_is_found(planted: type) -> None:
    law, told = planted_pools.PLANTED[planted]

    with pytest.raises(BrokenLawError) as error:
        check_live_cache(planted, examples=300, **told)

    assert error.value.law.endswith(law)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*RIGHT, *planted_pools.RIGHT])
def test_a_right_cache_holds_all_laws(name: str) -> None:
    make, told = (RIGHT | planted_pools.RIGHT)[name]

    assert check_live_cache(make, examples=40, **told).loaded.total() > 20


def test_a_cache_that_never_loads_anything_fails_as_vacuous() -> None:
    class Empty(Blocks):
        def lookup(self, request: Request) -> int:
            return 0

    with pytest.raises(VacuousCheckError, match="nothing was ever loaded"):
        check_live_cache(Empty, examples=20)


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ({"presets": ()}, "presets is empty"),
        ({"presets": "dense"}, "presets is 'dense'; write one or more, as presets="),
        ({"varied": ("salts",)}, r"varied is \('salts',\); write a tuple of some of adapter"),
        ({"varied": "salt"}, "varied is 'salt'; write a tuple"),
        ({"unit": 0}, "unit is 0; write a whole number from 1"),
        ({"limit": -1}, "limit is -1; write a whole number from 0"),
        ({"examples": 0}, "examples is 0; write a whole number from 1"),
    ],
)
def test_an_argument_that_checks_nothing_is_refused(argument: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        check_live_cache(Blocks, **argument)


@pytest.mark.parametrize(
    ("nbytes", "error", "why"),
    [
        (None, VacuousCheckError, "limit=9 was not checked"),
        (np.int64(10), BrokenLawError, "nbytes is 10, the limit 9"),
    ],
)
def test_a_limit_needs_a_size_which_may_be_a_number_of_numpy(
    nbytes: Any, error: type[Exception], why: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(Blocks, "nbytes", nbytes, raising=False)
    with pytest.raises(error, match=why):
        check_live_cache(Blocks, limit=9, examples=5)


def test_layers_may_be_lists_and_what_is_no_layer_is_told_in_a_sentence() -> None:
    class Lists(Blocks):
        def load(self, request: Request, count: int) -> Any:
            rows = super().load(request, count)
            return rows and tuple(layer.tolist() for layer in rows)

    assert check_live_cache(Lists, examples=20).continued

    for returned, why in (
        (7, "load returned int, no sequence of layers"),
        (["a", "b"], "layer 0 is str, no array and no list of rows"),
    ):
        load = {"load": lambda *_, returned=returned: returned}
        with pytest.raises(BrokenLawError) as error:
            check_live_cache(type("Other", (Blocks,), load), examples=20)
        assert why == error.value.why


def test_a_memory_of_another_form_is_told_what_it_lacks() -> None:
    with pytest.raises(InputError, match="the memory has no method feed; it needs feed, seq_rm"):
        check_memory(object)  # type: ignore[arg-type]


def test_a_law_is_named_by_what_has_to_differ() -> None:
    with pytest.raises(BrokenLawError) as error:
        check_live_cache(OnlyLastToken, examples=60)

    assert error.value.law == "tokens in the key"
    assert not any("image=" in line or "salt=" in line for line in error.value.story)


def test_a_size_that_a_constructor_takes_is_made_small() -> None:
    assert "opened with blocks for 3 blocks" in str(check_live_cache(BlockPool, examples=10))
    assert "no parameter for one" in str(check_live_cache(Blocks, examples=10))
    bound = partial(BlockPool, blocks=9)
    assert size_of(bound, 8) is None, "what its owner chose stays"


def test_a_cache_of_another_form_breaks_a_law() -> None:
    class Nothing(Blocks):
        def lookup(self, request: Request) -> Any:
            del request

    class OneLayer(Blocks):
        def load(self, request: Request, count: int) -> Any:
            return (super().load(request, count) or [])[:1]

    class Other:
        def __init__(self, server: Server, folder: object) -> None:
            pass

    for cache, why in (
        (Nothing, "lookup returned None, no number of tokens"),
        (OneLayer, "1 layers, not 2"),
        (Other, "the cache has no method store"),
    ):
        with pytest.raises(BrokenLawError) as error:
            check_live_cache(cache, examples=20)
        assert why == error.value.why


def test_a_report_names_the_row_that_is_wrong_and_its_source() -> None:
    with pytest.raises(BrokenLawError) as error:
        check_live_cache(OnlyLastToken, varied=())

    assert error.value.why.startswith("layer 1, token 0 is token 0 of [1, 0")


@pytest.mark.thorough
def test_isolation_of_hit_counts_may_be_left_out() -> None:
    class Shared(Blocks):
        def names(self, request: Request) -> tuple[str, str]:
            return request.adapter, request.image

    with pytest.raises(BrokenLawError, match="salts apart"):
        check_live_cache(Shared)

    check_live_cache(Shared, isolates=False, examples=50)


@pytest.mark.parametrize("preset", PRESETS)
def test_rows_that_are_put_back_continue_as_a_cold_run(preset: str) -> None:
    server = Server(preset=preset, dtype="float64")
    request = Request(tokens=PROMPT[:30])

    assert np.array_equal(
        cold_logits(tiny(preset), PROMPT)[-1:],
        answer(server, request, rows_of(server, request), PROMPT[30:]),
    )


@pytest.mark.parametrize("dtype", get_args(DataType))
def test_bytes_of_blocks_are_the_rows_again(dtype: str) -> None:
    server = Server(preset="hybrid", dtype=dtype)  # type: ignore[arg-type]
    blocks = split(server, rows_of(server, Request(tokens=PROMPT)), 8)

    again = [unpacked(server, packed(block), 8) for block in blocks]

    assert packed(joined(blocks)) == packed(joined(again))


def test_each_name_of_a_request_changes_its_rows() -> None:
    server, plain = Server(), Request(tokens=as_tokens((300, 3, 3, 3, 301)))
    named = (
        Request(tokens=plain.tokens, adapter="a"),
        Request(tokens=plain.tokens, image="5e", image_at=1),
    )
    servers = (Server(seed=1), Server(rope_base=40000.0), Server(dtype="float16"))

    found = [packed(rows_of(server, each)) for each in (plain, *named)]
    found += [packed(rows_of(each, plain)) for each in servers]

    assert len(found) == len(set(found))


def test_long_prompts_are_told_as_runs() -> None:
    assert "[0, 0, 1]" == shown([0, 0, 1])
    assert "[0 x 16, 1, 3 x 2]" == shown([0] * 16 + [1, 3, 3])


def test_a_cache_of_whole_prompts_has_states_of_boundaries() -> None:
    assert check_live_cache(States, presets=("recurrent",), examples=50).continued


def test_a_missing_package_breaks_no_law() -> None:
    class Incomplete(Blocks):
        def lookup(self, request: Request) -> int:
            raise ModuleNotFoundError(request)

    with pytest.raises(ModuleNotFoundError):
        check_live_cache(Incomplete)
