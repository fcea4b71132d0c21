"""The GGUF writer, read back by a reader that shares nothing with it."""

import io
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from cachesim.errors import SpecError
from cachesim.model.presets import PRESETS, preset
from cachesim.model.spec import ModelSpec
from cachesim.model.weights import draw
from cachesim.prove.llama_cpp import gguf
from cachesim.prove.llama_cpp.gguf import as_ggml_computes
from conformance.real.ik_llama.deepseek4 import write_predictor, write_target

SIMPLE = {4: "<I", 5: "<i", 6: "<f", 7: "<?"}


def number(file: BinaryIO, layout: str) -> Any:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))[0]


def string(file: BinaryIO) -> str:
    return file.read(number(file, "<Q")).decode()


def value(file: BinaryIO, kind: int) -> Any:
    if kind == 8:
        return string(file)
    if kind == 9:
        inner = number(file, "<I")
        return [value(file, inner) for _ in range(number(file, "<Q"))]
    return number(file, SIMPLE[kind])


def read(file: BinaryIO) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    assert file.read(4) == b"GGUF"
    assert number(file, "<I") == 3
    tensor_count, key_count = number(file, "<Q"), number(file, "<Q")
    keys = {string(file): value(file, number(file, "<I")) for _ in range(key_count)}
    headers = []
    for _ in range(tensor_count):
        name = string(file)
        shape = [number(file, "<Q") for _ in range(number(file, "<I"))]
        assert number(file, "<I") == 0  # F32
        headers.append((name, shape, number(file, "<Q")))
    start = -(-file.tell() // gguf.ALIGNMENT) * gguf.ALIGNMENT
    tensors = {}
    for name, shape, offset in headers:
        file.seek(start + offset)
        data = np.frombuffer(file.read(4 * int(np.prod(shape))), "<f4")
        tensors[name] = data.reshape(shape[::-1])
    return keys, tensors


def test_keys_and_tensors_come_back_as_they_were_written() -> None:
    tensors = {
        "a": np.arange(5, dtype=np.float32),
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    }
    written = {
        "n": gguf.u32(7),
        "list": gguf.i32([-1, 2]),
        "x": gguf.f32(0.5),
        "yes": gguf.flag(value=True),
        "word": gguf.text("löwe"),
        "words": gguf.text(["a", ""]),
    }
    file = io.BytesIO()

    gguf.write_gguf(file, written, tensors)
    file.seek(0)
    keys, found = read(file)

    assert keys == {
        "n": 7,
        "list": [-1, 2],
        "x": 0.5,
        "yes": True,
        "word": "löwe",
        "words": ["a", ""],
    }
    assert list(found) == ["a", "b"]
    for name, tensor in tensors.items():
        assert np.array_equal(found[name], tensor)


def test_every_tensor_starts_at_a_multiple_of_the_alignment() -> None:
    file = io.BytesIO()

    gguf.write_gguf(file, {}, {"a": np.ones(3, np.float32), "b": np.ones(1, np.float32)})

    assert file.getbuffer().nbytes % gguf.ALIGNMENT == 0


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_s_file_holds_the_simulator_s_own_weights(name: str, tmp_path: Path) -> None:
    spec = preset(name, seed=3)
    path = tmp_path / "model.gguf"

    gguf.write_model(spec, path)
    with path.open("rb") as file:
        keys, tensors = read(file)

    weights = draw(spec)
    assert list(tensors) == list(weights)
    for tensor, weight in weights.items():
        assert np.array_equal(tensors[tensor], weight)
    assert len(keys["tokenizer.ggml.tokens"]) == len(set(keys["tokenizer.ggml.tokens"])) == 512
    assert keys[f"{keys['general.architecture']}.block_count"] == len(spec.layers) + spec.mtp_depth


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("dense", "llama"),
        ("swa", "gemma3"),
        ("recurrent", "mamba2"),
        ("hybrid", "granitehybrid"),
        ("hybrid-delta", "qwen35"),
        ("hybrid-swa", "lfm2"),
        ("hybrid-mtp", "qwen35"),
        ("recall-recurrent", "mamba2"),
        ("recall-hybrid-delta", "qwen35"),
        ("recall-hybrid-swa", "lfm2"),
    ],
)
def test_every_preset_is_written_as_the_family_it_follows(name: str, family: str) -> None:
    assert family == gguf.architecture(preset(name))


def test_a_hybrid_says_layer_by_layer_who_attends() -> None:
    keys = gguf.model_keys(preset("hybrid"))

    assert [0, 0, 2, 0, 0, 2] == keys["granitehybrid.attention.head_count_kv"].value


def test_the_window_reaches_the_file() -> None:
    keys = gguf.model_keys(preset("swa", window=17))

    assert keys["gemma3.attention.sliding_window"].value == 17
    assert keys["gemma3.attention.sliding_window_pattern"].value == 2


@pytest.mark.parametrize(
    "spec", [ModelSpec(layers=("attention",), qk_norm=True), preset("recall-hybrid")]
)
def test_a_network_of_no_family_is_refused(spec: ModelSpec) -> None:
    with pytest.raises(SpecError, match="follows no family"):
        gguf.architecture(spec)


def test_attention_layers_at_no_fixed_period_are_refused() -> None:
    spec = preset("swa", layers=("window", "attention", "attention", "window"))

    with pytest.raises(SpecError, match="fixed period"):
        gguf.model_keys(spec)


def test_ggml_takes_gelu_from_a_table_and_the_rest_as_it_is() -> None:
    assert "gelu-table" == as_ggml_computes(preset("swa")).activation
    assert preset("hybrid") == as_ggml_computes(preset("hybrid"))


def test_the_toy_of_deepseek_4_has_three_layers_and_its_predictor_the_fourth(
    tmp_path: Path,
) -> None:
    files = tmp_path / "target", tmp_path / "predictor"
    write_target(files[0], 512, 128)
    write_predictor(files[1], 512, 128)

    (keys, target), (more, predictor) = (read(io.BytesIO(file.read_bytes())) for file in files)
    layers = [
        {tensor.split(".")[1] for tensor in tensors if tensor.startswith("blk.")}
        for tensors in (target, predictor)
    ]

    assert [{"0", "1", "2"}, {"3"}] == layers
    for name, values in {
        "block_count": [3, 4],
        "nextn_predict_layers": [None, 1],
        "attention.compress_ratios": [[0, 4, 128], [0, 4, 128, 0]],
    }.items():
        assert values == [each.get(f"deepseek4.{name}") for each in (keys, more)]
