"""Defaults that a server chooses by its machine, as each release does."""

from typing import Any

import pytest

from cachesim.engines.device import DEVICES, USUAL
from cachesim.engines.family import Profile, family_of
from cachesim.engines.vllm.family import FAMILY as VLLM
from cachesim.errors import OptionError
from cachesim.play import run_scenario

SMALL, LARGE, LARGEST = (2048, 256), (8192, 1024), (16384, 1024)
ALL = VLLM.names()


def chosen(profile: str, **given: Any) -> dict[str, int]:
    named = Profile.parse(profile)
    return dict(family_of(named.engine).chosen(named, given))


@pytest.mark.parametrize(
    ("device", "first", "expected"),
    [
        ("t4", ALL[0], SMALL),
        ("l40s", ALL[0], SMALL),
        ("a100", ALL[0], SMALL),
        ("h100", ALL[0], LARGE),
        ("h200", ALL[0], LARGE),
        ("cpu", ALL[0], (2048, 128)),
        ("b200", "0.28.0", LARGEST),
        ("gb10", "0.33.0", SMALL),
    ],
)
def test_vllm_chooses_the_limits_of_a_step(
    device: str, first: str, expected: tuple[int, int]
) -> None:
    """Before the first release the machine counts as any of 70 GB and more."""
    for release in ALL:
        found = chosen(f"vllm@{release}", device=device)
        limits = found["max_num_batched_tokens"], found["max_num_seqs"]

        assert (release, expected if release in VLLM.since(first) else LARGE) == (release, limits)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}),
        ({"max_num_batched_tokens": 300}, {"max_num_seqs": 300}),
        ({"max_num_seqs": 2}, {"max_num_batched_tokens": 8192}),
        ({"max_num_seqs": 2, "max_model_len": 100}, {"max_num_batched_tokens": 200}),
        ({"max_num_seqs": 2, "max_num_batched_tokens": 64}, {}),
    ],
)
def test_vllm_leaves_what_is_given_and_fits_the_rest_to_it(
    given: dict[str, int], expected: dict[str, int]
) -> None:
    assert expected == chosen("vllm@0.33.0", **given)


def test_a_server_of_vllm_on_a_cpu_has_larger_blocks() -> None:
    assert 128 == chosen("vllm@0.33.0", device="cpu")["block_size"]
    assert "block_size" not in chosen("vllm@0.33.0", device="cpu", block_size=32)


@pytest.mark.parametrize(
    ("device", "older", "newer"),
    [
        ("t4", 2048, 2048),
        ("l4", 2048, 4096),
        ("l40s", 4096, 4096),
        ("a100", 8192, 8192),
        ("h200", 8192, 8192),
        ("b200", 16384, 16384),
    ],
)
def test_sglang_chooses_the_chunks_of_a_prefill(device: str, older: int, newer: int) -> None:
    sizes = {"0.5.9": older, "0.5.22": newer, "0.5.23": newer}

    assert sizes == {
        release: chosen(f"sglang@{release}", device=device)["chunked_prefill_size"]
        for release in sizes
    }


def scenario(prompt: int, **options: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "name": "long",
        "model": {"preset": "hybrid"},
        "engine": {"name": "vllm", "options": {"num_gpu_blocks_override": 2000} | options},
        "spans": {"P": prompt, "Q": 9, "R": 9},
        "step": [{"prompt": "P Q"}, {"prompt": "P R"}],
    }


def test_the_chunks_of_a_smaller_machine_leave_other_states() -> None:
    """A long prompt is read in one step on an H100, in two on an L4."""
    dense = {"prefix_cache_retention_interval": -1}

    def cached(device: str) -> int:
        made = scenario(3000, device=device, **dense)
        return run_scenario(made, profile="vllm@0.31.0", arithmetic="ring").steps[1].cached or 0

    assert (0, 2048) == (cached("h100"), cached("l4"))


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(OptionError, match="write one of t4, l4"):
        chosen("vllm@0.33.0", device="a10g")
    with pytest.raises(OptionError, match="write one of"):
        chosen("sglang@0.5.23", device="cpu")
    assert USUAL in DEVICES
