"""Several models in one mlx-lm server: what is batched, who waits, what is evicted."""

from typing import Any

import pytest

from cachesim.engines.mlx_lm.vocabulary import ModelLoaded, RequestAdmitted, RequestFinished
from cachesim.play.result import Run
from cachesim.play.runner import run_scenario

CHUNKS = {"layers": ["window", "window", "window", "attention"], "window": 8, "chunked": True}


def played(release: str, *steps: dict[str, Any], **changes: Any) -> Run:
    engine = {"name": "mlx-lm", "profiles": [release], "options": changes.pop("options", {})}
    models = {"states": {"preset": "recurrent"}, "chunks": CHUNKS}
    return run_scenario(
        {
            "format": 1,
            "name": "models",
            "model": {"preset": "dense"},
            "models": models,
            "engine": engine,
            "spans": {"S": 20, "a": 5},
            "step": [{"predict": 2, "prompt": "S a"} | step for step in steps],
        },
        arithmetic="ring",
    )


def paths(run: Run) -> list[str]:
    events = (event for step in run.steps for event in step.events)
    return [event.path for event in events if isinstance(event, RequestAdmitted)]


@pytest.mark.parametrize(
    ("release", "other", "path"),
    [
        ("0.30.2", "states", ["single", "single", "single"]),
        ("0.30.5", "chunks", ["single", "single", "batch"]),
        ("0.30.7", "chunks", ["single", "batch", "batch"]),
        ("0.32.2", "chunks", ["single", "single", "batch"]),
    ],
)
def test_the_model_before_may_decide_if_a_request_is_batched(
    release: str, other: str, path: list[str]
) -> None:
    assert path == paths(played(release, {"model": other}, {}, {}))


def test_a_request_for_another_model_waits_for_the_batch() -> None:
    run = played("0.32.2", {"predict": 6}, {"model": "states", "with_previous": True})
    order = [
        (type(event).__name__, int(event.task))
        for step in run.steps
        for event in step.events
        if isinstance(event, RequestAdmitted | RequestFinished | ModelLoaded)
    ]

    assert order == [
        ("RequestAdmitted", 0),
        ("RequestFinished", 0),
        ("ModelLoaded", 1),
        ("RequestAdmitted", 1),
        ("RequestFinished", 1),
    ]


def test_entries_of_one_model_are_no_others_and_share_its_limit() -> None:
    asked = ({}, {"model": "states"}, {})

    assert [0, 0, 24] == [step.cached for step in played("0.32.2", *asked).steps]
    small = played("0.32.2", *asked, options={"prompt_cache_size": 1})
    assert [0, 0, 0] == [step.cached for step in small.steps]
    assert [{"states"}] == [
        {each.get("model") for each in step.prompt_cache} for step in small.steps[1:2]
    ]


@pytest.mark.parametrize(
    ("release", "error"), [("0.31.3", "UnboundLocalError"), ("0.32.0", "ValueError")]
)
def test_a_draft_model_does_not_change_what_a_request_for_no_token_gets(
    release: str, error: str
) -> None:
    options = {"draft_model": "dense", "num_draft_tokens": 2}

    assert [error] == [
        step.error for step in played(release, {"predict": 0}, options=options).steps
    ]
