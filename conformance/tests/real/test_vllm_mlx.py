"""vllm-mlx's and Rapid-MLX's own schedulers and prefix caches beside the simulated ones."""

import sys
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from cachesim.engines.family import Profile
from cachesim.engines.mlx_lm.caches.prompt_cache import copy_prompt_cache
from cachesim.engines.mlx_lm.store.lru_prompt_cache import Fetched, Key
from cachesim.engines.rapid_mlx.memory_cache import RapidPromptCache
from cachesim.engines.vllm_mlx.memory_cache import MemoryPromptCache
from cachesim.engines.vllm_mlx.mllm_batch_generator import MllmPromptCache
from cachesim.engines.vllm_mlx.mllm_cache import WholePromptCache
from cachesim.play.session import Session
from cachesim.prove.playing import Workload
from cachesim.scenario.shipped import load_all
from cachesim.typed import there_is
from conformance.real.agreement import Agreement, show_overrides
from conformance.real.mlx_lm.vllm_mlx import (
    BEFORE,
    MLX_VLM,
    MODELS,
    RAPID_MLX,
    VLLM_MLX,
    RealScheduler,
    compare_images,
    compare_vllm_mlx,
    draw,
    draw_images,
    draw_whole,
    overrides,
    overrides_of_images,
)
from conformance.real.mlx_lm.vllm_mlx_worker import config_of
from tests.fixtures import Capture, Patch

COMMAND_LINE = """
import argparse
SchedulerConfig = dict

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--entries", type=int, default=8)
    parser.parse_args()

def serve_command(args):
    download(args.model)
    from math import floor
    if args.entries > 4:
        args.entries = floor(4.5)
    if args.model:
        port = open_port()
        wanted = SchedulerConfig(entries=args.entries, listed=args._original_alias)
        run(wanted, port)
"""
"""A wheel's command line: functions that are not defined would raise if they were called."""

WHEELS = pytest.mark.parametrize("wheel", [VLLM_MLX, RAPID_MLX])


def compared(wheel: str) -> Agreement:
    return compare_vllm_mlx(0, 2 * len(MODELS), wheel=wheel)


def test_settings_are_computed_without_the_rest_of_the_command(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "vllm_mlx").mkdir()
    (tmp_path / "vllm_mlx" / "__init__.py").touch()
    (tmp_path / "vllm_mlx" / "cli.py").write_text(COMMAND_LINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    flags, config = config_of(["serve", "MODEL"], "qwen")

    assert {"command": "serve", "model": "MODEL", "entries": 8} == flags
    assert {"entries": 4, "listed": "qwen"} == config


@pytest.mark.wheel
@WHEELS
def test_it_is_started_as_from_a_command_line(wheel: str, capsys: Capture) -> None:
    assert 0 == show_overrides(wheel, overrides(wheel))
    assert "max_entries: 1000 -> " in capsys.readouterr().out


@pytest.mark.wheel
@pytest.mark.nightly
@WHEELS
def test_its_scheduler_gives_and_keeps_what_is_simulated(wheel: str) -> None:
    found = compared(wheel)

    assert found.difference is None
    assert sum(
        len(draw(0, number, wheel)["requests"]) for number in range(2 * len(MODELS))
    ) == found.total("requests")
    assert found.total("hits") > 0 < found.total("found not all used")


@pytest.mark.wheel
def test_an_entry_that_stays_too_long_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(MemoryPromptCache, "evict_prefixes", lambda *_: None)

    assert compared(VLLM_MLX).difference is not None


@pytest.mark.wheel
def test_a_prompt_that_is_kept_with_its_last_token_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(RapidPromptCache, "keeps_before_end", lambda *_: False)

    assert compared(RAPID_MLX).difference is not None


class Wrong(WholePromptCache):
    """A cache that returns copies, and one that keeps nothing."""

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        found = RIGHT(self, model, tokens)
        cache = found.prompt_cache
        return replace(found, prompt_cache=None if cache is None else copy_prompt_cache(cache))

    def insert_cache(self, *_: object, **__: object) -> None:
        """Keep nothing."""


RIGHT: Final = WholePromptCache.fetch


def compared_images(
    wheel: str, drawing: Callable[[int, int], Workload] = draw_images, *, each: int = 12
) -> Agreement:
    return compare_images(0, each * len(MODELS), wheel=wheel, drawing=drawing)


@pytest.mark.wheel
@pytest.mark.nightly
@pytest.mark.parametrize("wheel", [VLLM_MLX, BEFORE])
def test_its_scheduler_feeds_and_keeps_images_as_simulated(wheel: str) -> None:
    found = compared_images(wheel)

    assert found.difference is None
    assert 600 == found.total("requests")
    assert found.total("hits") > 0 < found.total("with images")


@pytest.mark.nightly
@pytest.mark.wheel
def test_its_default_engine_feeds_and_keeps_images_as_simulated() -> None:
    found = compared_images(VLLM_MLX, draw_whole)

    assert found.difference is None
    assert 600 == found.total("requests") == found.total("with images")


@pytest.mark.wheel
@pytest.mark.nightly
@pytest.mark.parametrize("name", ["fetch", "insert_cache"])
def test_a_wrong_rule_of_the_default_engine_is_found(name: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(WholePromptCache, name, getattr(Wrong, name))

    assert compared_images(VLLM_MLX, draw_whole).difference is not None


@pytest.mark.wheel
def test_limits_of_requests_with_images_are_named(capsys: Capture) -> None:
    assert 0 == show_overrides(VLLM_MLX, overrides_of_images())
    assert "max_pixel_entries: 100 -> " in capsys.readouterr().out


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("wheel", "method", "wrong", "each"),
    [
        (VLLM_MLX, "prepare", lambda _self, prompt, images: (prompt, images), 2),
        pytest.param(VLLM_MLX, "keeps_logits", lambda *_: False, 12, marks=pytest.mark.nightly),
        pytest.param(VLLM_MLX, "evict_prefixes", lambda *_: None, 12, marks=pytest.mark.nightly),
        pytest.param(BEFORE, "_covered", MemoryPromptCache._covered, 12, marks=pytest.mark.nightly),
    ],
)
def test_a_wrong_rule_for_images_is_found(
    wheel: str, method: str, wrong: Callable[..., object], each: int, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(MllmPromptCache, method, wrong)

    assert compared_images(wheel, each=each).difference is not None


ON_A_SCHEDULER: Final = [
    ("718-another-image", BEFORE, "llama", "718", [0, 295, 295, 295]),
    ("718-another-image", VLLM_MLX, "llama", "mllm", [0, 0, 0, 0]),
    ("images-in-another-order", VLLM_MLX, "llama", "mllm", [0, 0]),
    ("image-ends-reuse", VLLM_MLX, "llama", "mllm", [0, 220, 0, 0, 0]),
    ("states-of-the-first-turn", VLLM_MLX, "qwen3_5", "mllm", [0, 220, 220, 220]),
]


def requests_of(name: str, patch: str) -> list[dict[str, Any]]:
    """A scenario's requests, with the simulator's replies."""
    [(_, scenario)] = load_all([f"vllm-mlx-{name}"])
    return [
        {
            "prompt": record.prompt,
            "images": [(image.name, image.start, image.count) for image in record.images],
            "reply": there_is(record.reply).generated,
            "stream": record.step.options.get("stream", False),
        }
        for record in Session(scenario, Profile.parse(f"mlx-lm@0.31.3+{patch}")).run()
    ]


def really_played(wheel: str, family: str, **more: object) -> list[dict[str, Any]]:
    workload = {"id": "", "model": {"family": family}, "template": "chatml", "vocabulary": 512}
    with TemporaryDirectory() as folder, RealScheduler(wheel, folder, MLX_VLM) as real:
        return real.play(workload | more)


@pytest.mark.wheel
@pytest.mark.parametrize(("name", "wheel", "family", "patch", "cached"), ON_A_SCHEDULER)
def test_a_scenario_is_served_by_its_scheduler_as_told(
    name: str, wheel: str, family: str, patch: str, cached: list[int]
) -> None:
    requests = requests_of(name, f"vllm-mlx-{patch}")
    limits = {"min_prefix_tokens": 128, "max_entries": 1000}
    played = really_played(wheel, family, limits=limits, pixels=100, requests=requests)
    pairs = list(zip(requests, played, strict=True))

    assert cached == [
        len(wanted["prompt"] + wanted["reply"]) - len(theirs["fed"]) for wanted, theirs in pairs
    ]
    differing = [
        at
        for at, (wanted, theirs) in enumerate(pairs)
        if [*(wanted["prompt"] + wanted["reply"])][-len(theirs["fed"]) :] != [*theirs["fed"]]
    ]
    assert ([1] if "order" in name else []) == differing


@pytest.mark.wheel
def test_a_streamed_reply_grows_the_entry_of_the_default_engine() -> None:
    requests = requests_of("prompt-fed-twice-when-streamed", "vllm-mlx-whole")
    limits = {"max_entries": 50}
    played = really_played(VLLM_MLX, "llama", limits=limits, whole=True, requests=requests)

    assert [176, 176, 358, 540] == [step["entries"][0][1][0] for step in played]
    assert [182] * 4 == [len(step["fed"]) for step in played]
