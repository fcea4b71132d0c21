"""Requests that skip the lookup, and chunks beside fine ids, by the releases' own schedulers."""

from typing import Any

import pytest

from cachesim.engines.family import Profile
from cachesim.engines.vllm.vocabulary import CACHE_NOT_READ, ChunkScheduled
from cachesim.play.session import Record, Session
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step
from cachesim.typed import there_is

FIRST = tuple(range(300, 324))
SECOND = (*FIRST[:18], *range(340, 352))
"""16 of its tokens are cached by attention, and no state is after 16."""


def played(release: str, model: Model, *steps: Step, **options: Any) -> list[Record]:
    scenario = Scenario(
        format=FORMAT,
        name="skipped",
        model=model,
        engine=Server(name="vllm", profiles=(release,), options=options),
        step=steps,
    )
    return list(Session(scenario, Profile("vllm", release), arithmetic="ring").run())


@pytest.mark.parametrize(
    ("release", "connector", "chunks"),
    [
        ("0.24.0", "none", [(0, 16), (16, 24)]),
        ("0.25.1", "none", [(0, 16), (16, 24)]),
        ("0.26.0", "none", [(0, 24)]),
        ("0.24.0", "store", [(20, 24)]),
        ("0.26.0", "store", [(20, 24)]),
        ("0.33.0", "store", [(0, 24)]),
    ],
)
def test_a_request_that_skips_the_lookup_is_cut_at_the_last_one_and_hits_beside_a_store(
    release: str, connector: str, chunks: list[tuple[int, int]]
) -> None:
    """Until 0.25 the junction of the last lookup cuts it; a store was queried from any hit on."""
    steps = (
        Step(prompt=FIRST, predict=2),
        Step(prompt=SECOND, predict=2),
        Step(prompt=FIRST, predict=1, cache_prompt=False),
    )
    last = played(release, Model(preset="hybrid-delta"), *steps, block_size=4, connector=connector)[
        -1
    ]

    assert chunks == [(e.start, e.end) for e in last.events if isinstance(e, ChunkScheduled)]
    causes = {loss.cause for loss in there_is(last.reply).losses}
    assert (chunks[0][0] == 0) == (CACHE_NOT_READ in causes)


@pytest.mark.parametrize(("release", "error"), [("0.27.1", "aborted"), ("0.28.0", None)])
def test_chunked_attention_beside_finer_ids_ends_the_engine_core_until_027(
    release: str, error: str | None
) -> None:
    model = Model(layers=("delta", "window", "attention"), window=8, chunked=True)
    [record] = played(
        release, model, Step(prompt=FIRST, predict=2), block_size=8, prefix_match_unit=2
    )

    assert error == record.error
