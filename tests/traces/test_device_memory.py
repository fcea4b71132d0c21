"""Pools from the bytes of a device: each engine's own rule, and never more than the device has."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachesim.errors import InputError
from cachesim.model.spec import Sizes
from cachesim.traces.fleet.fleet import Fleet
from cachesim.traces.plan import plan_of
from cachesim.traces.playing import play
from cachesim.traces.replay import Cell, Measured
from cachesim.traces.source import Source

SCALE = 32
MEMORY = 40 * 10**9
VLLM, SGLANG, LLAMA = "vllm@0.33.0", "sglang@0.5.23", "llama.cpp@b11549"


def cell(profile: str, model: str, sizes: Sizes, **options: Any) -> Cell:
    return Cell(
        source=Source(name="made:150", scale=SCALE),
        profile=profile,
        model=model,
        options=tuple(options.items()),
        measured=Measured(sizes=sizes, by="--sizes x"),
    )


DENSE, HYBRID = Sizes(token=131_072), Sizes(token=24_576, state=79_036_416)
WINDOWS = Sizes(token=20_480, window=204_800)
BLOCK = 16 * SCALE  # tokens of the trace


@pytest.mark.parametrize(
    ("profile", "model", "sizes", "flags"),
    [
        (VLLM, "dense", DENSE, {"num_gpu_blocks_override": MEMORY // (BLOCK * 131_072)}),
        (*(VLLM, "hybrid", HYBRID), {"num_gpu_blocks_override": MEMORY // (2 * 79_036_416 // 4)}),
        (*(VLLM, "swa", WINDOWS),
         {"num_gpu_blocks_override": MEMORY // (2 * BLOCK * 204_800 // 2)}),
        (SGLANG, "dense", DENSE, {"max_total_tokens": MEMORY // (SCALE * 131_072)}),
        (
            *(SGLANG, "hybrid", HYBRID),
            {
                "max_mamba_cache_size": (states := int(MEMORY * 0.9 / 1.9 / 79_036_416 - 1)),
                "max_total_tokens": (MEMORY - (states + 1) * 79_036_416) // (SCALE * 24_576),
            },
        ),
        (*(SGLANG, "swa", WINDOWS),
         {"max_total_tokens": int(MEMORY // (SCALE * (20_480 + 0.8 * 204_800)))}),
        (LLAMA, "dense", DENSE, {"ctx_size": MEMORY // (SCALE * 131_072) // 256 * 256}),
        (*(LLAMA, "hybrid", HYBRID),
         {"ctx_size": (MEMORY - 79_036_416) // (SCALE * 24_576) // 256 * 256}),
    ],
)  # fmt: skip
def test_the_pools_are_those_of_the_engines_rule(
    profile: str, model: str, sizes: Sizes, flags: dict[str, int]
) -> None:
    assert flags == cell(profile, model, sizes, memory="40GB").pools()


@pytest.mark.parametrize("profile", [VLLM, SGLANG])
@pytest.mark.parametrize(("model", "sizes"), [("dense", DENSE), ("hybrid", HYBRID)])
def test_what_is_held_fits_into_the_memory(profile: str, model: str, sizes: Sizes) -> None:
    memory = 4 * 10**9

    found = play(cell(profile, model, sizes, memory=memory))

    held = [each for kind, each in found["held"].items() if kind in {"attention", "states"}]
    assert memory / 10 < max(map(sum, zip(*held, strict=True))) <= memory
    note = found["notes"][0]
    assert note.startswith(f"{profile}: memory = 4,000,000,000 bytes is ")
    assert note.endswith("as simulated, by --sizes x")
    assert "for a first look" in found["notes"][-1]


def test_each_replica_has_the_memory() -> None:
    one = cell(VLLM, "dense", DENSE, memory=8 * 10**9)
    many = Cell(
        source=one.source, profile=VLLM, model="dense", options=one.options,
        measured=one.measured, fleet=Fleet.of(2, "round-robin"),
    )  # fmt: skip

    assert one.pools() == many.pools()
    assert "num_gpu_blocks_override = 119" in " ".join(play(many)["notes"])


def test_a_prompt_may_be_as_long_as_the_memory_allows() -> None:
    found = cell(VLLM, "dense", DENSE, memory="80GB", max_model_len=18_000)

    assert 1192 == found.pools()["num_gpu_blocks_override"]  # 1,024 blocks hold 16,368 tokens
    found.check()
    with pytest.raises(InputError, match="holds no request of max_model_len = 20000 tokens"):
        cell(VLLM, "dense", DENSE, memory="80GB", max_model_len=20_000).check()


@pytest.mark.parametrize("profile", [VLLM, SGLANG])
def test_only_the_pool_limits_a_request_of_a_trace(profile: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 0, "input_length": length, "output_length": 1, "hash_ids": [*range(ids)]}
        for length, ids in ((5_000, 10), (20_000, 40))
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))

    cell = Cell(source=Source(name=str(trace)), profile=profile, model="dense")
    found = play(cell)
    assert 0 == found["refused"]  # the pools hold the longest
    assert "for the longest request of the trace (20,001 tokens)" in found["notes"][0]

    flag = "num_gpu_blocks_override" if profile == VLLM else "max_total_tokens"
    size = 1024 if profile == VLLM else 16_384
    found = play(replace(cell, options=((flag, size),)))
    assert 1 == found["refused"]
    assert "20000" in found["notes"][0]  # 16,384 tokens and fewer fit the pools


LLAMA_CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


@pytest.mark.parametrize("profile", [VLLM, SGLANG])
@pytest.mark.parametrize(
    ("config", "given", "refused"),
    [
        ({}, {}, 0),
        ({"max_position_embeddings": 16_384}, {}, 1),
        ({"max_position_embeddings": 4096}, {}, 2),
        ({"max_position_embeddings": 4096}, {"max_model_len": 512, "context_length": 512}, 1),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4}}, {}, 1),
    ],
)
def test_a_request_of_a_trace_is_no_longer_than_its_model_takes(
    profile: str, config: dict[str, Any], given: dict[str, int], refused: int, tmp_path: Path
) -> None:
    trace, model = tmp_path / "trace.jsonl", tmp_path / "config.json"
    lines = [
        {"timestamp": 0, "input_length": length, "output_length": 1, "hash_ids": [*range(ids)]}
        for length, ids in ((5_000, 10), (20_000, 40))
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    model.write_text(json.dumps({**LLAMA_CONFIG, **config}))
    name = "max_model_len" if profile == VLLM else "context_length"
    options = {"memory": "80GB"} | ({name: given[name]} if given else {})

    found = play(
        Cell(
            source=Source(name=str(trace), scale=SCALE),
            profile=profile,
            model="dense",
            options=tuple(options.items()),
            measured=Measured.of_model(str(model)),
        )
    )

    assert refused == found["refused"]
    by_model = bool(refused and config and not given)
    assert by_model == any("tokens of the trace" in note for note in found["notes"])


def test_memory_is_an_axis_of_a_plan() -> None:
    server = {"profile": VLLM, "sizes": "llama-3.1-8b", "set": {"memory": [10**10, 2 * 10**10]}}

    cells = plan_of({"format": 1, "trace": [{"made": 3, "scale": 32}], "server": [server]})

    assert [149, 298] == [each.pools()["num_gpu_blocks_override"] for each in cells]
    assert [10**10, 2 * 10**10] == [dict(each.options)["memory"] for each in cells]


@pytest.mark.parametrize(
    ("profile", "options", "complaint"),
    [
        (VLLM, {"memory": "much"}, "memory is much; write a number of bytes"),
        (VLLM, {"memory": 0}, "memory is 0; write a number of bytes"),
        (VLLM, {"memory": 9, "num_gpu_blocks_override": 9}, "both size the pools; leave one out"),
        (VLLM, {"memory": "1M"}, "too little for vllm: num_gpu_blocks_override would be 0"),
        ("mlx-lm@0.32.2", {"memory": "1GB"}, "mlx-lm takes the limits of its own flags"),
    ],
)
def test_a_memory_that_sizes_nothing_is_refused(
    profile: str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        cell(profile, "dense", DENSE, **options).check()


def test_memory_needs_the_bytes_of_a_model() -> None:
    bare = Cell(source=Source(name="made:3", scale=32), profile=VLLM, options=(("memory", "1GB"),))

    with pytest.raises(InputError, match=r"memory = 1GB limits bytes.*write --sizes MODEL"):
        bare.check()
