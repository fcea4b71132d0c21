"""The bytes of real models: products written out here, against what the config's values give."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.errors import InputError
from cachesim.model.presets import preset
from cachesim.model.spec import Sizes
from cachesim.prove.llama_cpp.gguf import model_keys, write_model
from cachesim.traces.plan import plan_of
from cachesim.traces.replay import Cell, Measured
from cachesim.traces.source import Source
from cachesim.why.infer.model_memory import known_models, memory_of, memory_of_config
from cachesim.why.infer.sizes import read_header, sizes_of_fields, sizes_of_gguf
from tests.fixtures import Capture, output

KEYS_AND_VALUES = 2 * 2  # both, of 16 bits
LATENT = 2 * (512 + 64)

TOKENS = {  # layers x heads x width, full attention and windows
    "llama-3.1-8b": (32 * 8 * 128 * KEYS_AND_VALUES, 0),
    "llama-3.1-70b": (80 * 8 * 128 * KEYS_AND_VALUES, 0),
    "llama-3.1-405b": (126 * 8 * 128 * KEYS_AND_VALUES, 0),
    "llama-4-scout": (12 * 8 * 128 * KEYS_AND_VALUES, 36 * 8 * 128 * KEYS_AND_VALUES),
    "llama-4-maverick": (12 * 8 * 128 * KEYS_AND_VALUES, 36 * 8 * 128 * KEYS_AND_VALUES),
    "mistral-7b-v0.1": (0, 32 * 8 * 128 * KEYS_AND_VALUES),
    "mixtral-8x7b": (32 * 8 * 128 * KEYS_AND_VALUES, 0),
    "mixtral-8x22b": (56 * 8 * 128 * KEYS_AND_VALUES, 0),
    "qwen3-0.6b": (28 * 8 * 128 * KEYS_AND_VALUES, 0),
    "qwen3-8b": (36 * 8 * 128 * KEYS_AND_VALUES, 0),
    "qwen3-32b": (64 * 8 * 128 * KEYS_AND_VALUES, 0),
    "qwen3-30b-a3b": (48 * 4 * 128 * KEYS_AND_VALUES, 0),
    "qwen3-235b-a22b": (94 * 4 * 128 * KEYS_AND_VALUES, 0),
    "qwen3-coder-480b": (62 * 8 * 128 * KEYS_AND_VALUES, 0),
    "qwen3-next-80b-a3b": (12 * 2 * 256 * KEYS_AND_VALUES, 0),
    "qwen3.5-27b": (16 * 4 * 256 * KEYS_AND_VALUES, 0),
    "qwen3.5-35b-a3b": (10 * 2 * 256 * KEYS_AND_VALUES, 0),
    "qwen3.5-122b-a10b": (12 * 2 * 256 * KEYS_AND_VALUES, 0),
    "qwen3.5-397b-a17b": (15 * 2 * 256 * KEYS_AND_VALUES, 0),
    "deepseek-v3": (61 * LATENT, 0),
    "deepseek-v3.2": (61 * (LATENT + 128 + 4), 0),
    "kimi-k2": (61 * LATENT, 0),
    "kimi-linear-48b-a3b": (6 * LATENT, 0),
    "kimi-k3": (24 * LATENT, 0),
    "glm-5": (78 * (LATENT + 128 + 4), 0),
    "minimax-m2.5": (62 * 8 * 128 * KEYS_AND_VALUES, 0),
    "mimo-7b": (36 * 8 * 128 * KEYS_AND_VALUES, 0),
    "mimo-v2-flash": (9 * 4 * 2 * (192 + 128), 39 * 8 * 2 * (192 + 128)),
    "gpt-oss-20b": (12 * 8 * 64 * KEYS_AND_VALUES, 12 * 8 * 64 * KEYS_AND_VALUES),
    "gpt-oss-120b": (18 * 8 * 64 * KEYS_AND_VALUES, 18 * 8 * 64 * KEYS_AND_VALUES),
    "gemma-2-2b": (13 * 4 * 256 * KEYS_AND_VALUES, 13 * 4 * 256 * KEYS_AND_VALUES),
    "gemma-3n-e4b": (4 * 2 * 256 * KEYS_AND_VALUES, 16 * 2 * 256 * KEYS_AND_VALUES),
    "gemma-4-26b-a4b": (5 * 2 * 512 * KEYS_AND_VALUES, 25 * 8 * 256 * KEYS_AND_VALUES),
    "jamba-v0.1": (4 * 8 * 128 * KEYS_AND_VALUES, 0),
    "nemotron-h-56b": (10 * 8 * 128 * KEYS_AND_VALUES, 0),
    "nemotron-3-nano-30b-a3b": (6 * 2 * 128 * KEYS_AND_VALUES, 0),
    "zamba2-2.7b": (9 * 32 * 160 * KEYS_AND_VALUES, 0),
}

STATES = {  # layers x (taps x channels), layers x heads x key width x value width
    "qwen3-next-80b-a3b": (36 * 3 * (2 * 16 + 32) * 128, 36 * 32 * 128 * 128),
    "qwen3.5-27b": (48 * 3 * (2 * 16 + 48) * 128, 48 * 48 * 128 * 128),
    "qwen3.5-35b-a3b": (30 * 3 * (2 * 16 + 32) * 128, 30 * 32 * 128 * 128),
    "qwen3.5-122b-a10b": (36 * 3 * (2 * 16 + 64) * 128, 36 * 64 * 128 * 128),
    "qwen3.5-397b-a17b": (45 * 3 * (2 * 16 + 64) * 128, 45 * 64 * 128 * 128),
    "kimi-linear-48b-a3b": (21 * 3 * 3 * 32 * 128, 21 * 32 * 128 * 128),
    "kimi-k3": (69 * 3 * 3 * 96 * 128, 69 * 96 * 128 * 128),
    "jamba-v0.1": (28 * 3 * 8192, 28 * 8192 * 16),
    "nemotron-h-56b": (54 * 3 * (16384 + 2 * 8 * 256), 54 * 16384 * 256),
    "nemotron-3-nano-30b-a3b": (23 * 3 * (4096 + 2 * 8 * 128), 23 * 4096 * 128),
    "zamba2-2.7b": (54 * 3 * (5120 + 2 * 64), 54 * 5120 * 64),
}


@pytest.mark.parametrize("name", known_models())
def test_a_models_row_is_the_product_of_its_layers(name: str) -> None:
    memory = memory_of(name)
    sizes = memory.sizes("vllm")

    assert TOKENS[name] == (sizes.token, sizes.window)
    assert STATES.get(name, (0, 0)) == (memory.conv, memory.state)
    assert known_models()[name]["source"].startswith(("aiconfigurator: ", "transformers: "))


def test_each_engine_keeps_a_state_in_its_own_bytes() -> None:
    conv, state = STATES["qwen3-next-80b-a3b"]
    memory = memory_of("qwen3-next-80b-a3b")

    assert 4 * conv + 4 * state == memory.sizes("llama.cpp").state
    assert 2 * conv + 2 * state == memory.sizes("vllm").state
    assert 2 * conv + 4 * state == memory.sizes("sglang").state
    assert 2 * conv + 4 * state == memory.sizes("mlx-lm").state
    conv, state = STATES["qwen3.5-27b"]  # mamba_ssm_dtype is float32
    assert 2 * conv + 4 * state == memory_of("qwen3.5-27b").sizes("vllm").state


DELTA = {
    "num_hidden_layers": 8, "full_attention_interval": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 256, "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}  # fmt: skip
GRANITE = {
    "layer_types": ["mamba", "mamba", "attention"] * 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 128, "mamba_n_heads": 16, "mamba_d_head": 64,
    "mamba_n_groups": 8, "mamba_d_state": 128, "mamba_d_conv": 4,
}  # fmt: skip
MAMBA2 = {
    "model_type": "mamba2", "num_hidden_layers": 4, "num_heads": 64, "head_dim": 64,
    "state_size": 128, "n_groups": 8, "conv_kernel": 4,
}  # fmt: skip
GEMMA = {
    "num_hidden_layers": 4, "num_attention_heads": 8, "head_dim": 64, "num_key_value_heads": 8,
    "sliding_window": 128, "sliding_window_pattern": 2,
}  # fmt: skip
LFM2 = {
    "layer_types": ["conv", "sliding_attention"] * 2, "conv_L_cache": 3, "hidden_size": 2048,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "attention", "window", "conv", "state"),
    [
        (DELTA, "16.00", "0.00", "0.56", "12.00"),
        (GRANITE, "8.00", "0.00", "0.14", "2.00"),
        (MAMBA2, "0.00", "0.00", "0.28", "8.00"),
        (GEMMA, "16.00", "3.00", "0.00", "0.00"),
        (LFM2, "0.00", "3.00", "0.03", "0.00"),
    ],
)
def test_llama_cpp_allocates_as_much(
    config: Any, attention: str, window: str, conv: str, state: str
) -> None:
    """MiB that b11549 logs for files of these shapes: 4,096 cells, 768 of a window of 128."""
    memory = memory_of_config(config, "config.json")
    sizes = memory.sizes("llama.cpp")

    bytes_ = (sizes.token * 4096, sizes.window * 768, 4 * memory.conv, 4 * memory.state)
    assert [attention, window, conv, state] == [f"{each / (1 << 20):.2f}" for each in bytes_]


LLAMA = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 64}


@pytest.mark.parametrize(
    ("config", "token", "window", "state"),
    [
        (LLAMA, 4 * 8 * 8 * 4, 0, 0),
        ({"text_config": {**LLAMA, "num_key_value_heads": 2}}, 4 * 2 * 8 * 4, 0, 0),
        ({**LLAMA, "sliding_window": 9, "sliding_window_pattern": "LLLG"}, 256, 768, 0),
        ({**LLAMA, "sliding_window": 9, "use_sliding_window": False}, 1024, 0, 0),
        ({**LLAMA, "sliding_window": 9, "use_sliding_window": True, "max_window_layers": 3},
         *(768, 256, 0)),
        ({**LLAMA, "layer_types": ["full_attention", "sliding_attention"] * 2}, 1024, 0, 0),
        ({"model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window": 9},
         *(4 * 256 * 4, 5 * 4 * 256 * 4, 0)),
        ({**LLAMA, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
         *(256, 0, 2 * 64 * 2)),
        (
            {"model_type": "mamba2", "num_hidden_layers": 2, "num_heads": 4, "head_dim": 32}
            | {"hidden_size": 64, "state_size": 16, "n_groups": 2},
            *(0, 0, 2 * 2 * (3 * (128 + 64) + 128 * 16)),
        ),
        ({**LLAMA, "attn_type_list": [0, 0, 0, 1], "head_dim": 16},
         *(8 * 16 * 4, 0, 3 * 2 * 8 * 16 * 16)),
        (
            {**LLAMA, "model_type": "falcon_h1", "mamba_n_heads": 2, "mamba_d_head": 8}
            | {"mamba_d_state": 4, "mamba_d_conv": 4},
            *(1024, 0, 4 * 2 * (3 * (16 + 8) + 64)),
        ),
        (
            {"num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1}
            | {"block_types": ["recurrent", "recurrent", "attention"], "head_dim": 8}
            | {"lru_width": 32, "attention_window_size": 5},
            *(0, 1 * 8 * 4, 2 * 2 * (3 * 32 + 32)),
        ),
    ],
)  # fmt: skip
def test_every_kind_of_layer_is_counted(config: Any, token: int, window: int, state: int) -> None:
    wanted = Sizes(token=token, window=window, state=state)

    assert wanted == memory_of_config(config, "config.json").sizes("vllm")


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ([], "not an object"),
        ({}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 4}, "num_attention_heads is missing"),
        ({"num_hidden_layers": "x"}, "num_hidden_layers is x"),
        ({**LLAMA, "hidden_size": 0}, "neither head_dim nor hidden_size"),
        ({**LLAMA, "layer_types": ["gated_fog"]}, "a layer of type 'gated_fog' is not counted"),
        ({**LLAMA, "full_attention_interval": 0}, "full_attention_interval is 0, which is no list"),
        ({**LLAMA, "attn_type_list": [1]}, "attn_type_list is .1., which is no list of layers"),
        ({**LLAMA, "compress_ratios": [4]}, r"compressed attention \(DeepSeek-V4\) is not counted"),
        ({**LLAMA, "is_encoder_decoder": True}, "only decoders are counted"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(config: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        memory_of_config(config, "config.json")


def test_a_sparse_indexer_is_counted_where_its_bytes_are_known() -> None:
    with pytest.raises(InputError, match=r"indexer, whose bytes on llama\.cpp are not known"):
        memory_of("glm-5").sizes("llama.cpp")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "--sizes config.json: no file, and no model of the table"),
        ("GGUF", "not JSON; write the path of a model's config.json"),
        (" " * (1 << 24) + "{}", "not JSON"),
    ],
)
def test_a_wrong_file_of_a_config_is_refused(
    text: str | None, complaint: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)

    with pytest.raises(InputError, match=complaint):
        memory_of("config.json", tmp_path)


def test_the_preset_follows_the_model_and_its_window_the_scale(
    tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, "sliding_window": 640, "sliding_window_pattern": 4}))

    asked = ("compare", "made:20", "-p", "llama.cpp@b11549", "--format", "json")
    _, found = json.loads(output(capsys, [*asked, "--sizes", str(file)]))

    assert ("swa", 256, 768) == (found["model"], found["bytes"]["token"], found["bytes"]["window"])
    spec = Cell(
        source=Source(name="made:2", scale=32),
        profile="llama.cpp@b11549",
        model="swa",
        measured=Measured.of_model(str(file)),
    ).spec()
    assert 640 // 32 == spec.window
    assert 2 == main([*asked, "--sizes", "mistral-7b-v0.1"])
    assert "no preset has layers with a window" in capsys.readouterr().err


def test_a_models_name_is_found_in_any_case() -> None:
    assert memory_of("qwen3-next-80b-a3b") == memory_of("Qwen3-Next-80B-A3B")


def test_a_plan_names_a_model() -> None:
    server = {"profile": ["vllm@0.33.0", "sglang@0.5.23"], "sizes": "qwen3-next-80b-a3b"}

    cells = plan_of({"format": 1, "trace": [{"made": 3, "scale": 32}], "server": [server]})

    conv, state = STATES["qwen3-next-80b-a3b"]
    assert ["hybrid", "hybrid"] == [cell.model for cell in cells]
    assert [2 * (conv + state), 2 * conv + 4 * state] == [
        spec.sizes.state for cell in cells if (spec := cell.spec()).sizes is not None
    ]


def test_tune_counts_a_models_bytes(capsys: Capture) -> None:
    words = ("why", "--tune", "llama.cpp-three-requests", "-s", "cache_ram=100", "--format", "json")

    assert 0 == main([*words, "--sizes", "nemotron-3-nano-30b-a3b"])

    assert "given" == json.loads(capsys.readouterr().out)["sizes"]


def test_the_table_is_listed(capsys: Capture) -> None:
    assert len(known_models()) == len(output(capsys, ["list", "models"]).splitlines())
    assert 0 == main(["list", "nemotron-3-nano-30b-a3b"])
    conv, state = STATES["nemotron-3-nano-30b-a3b"]
    assert (
        f"a recurrent state on llama.cpp: {4 * (conv + state):,} bytes" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("config", "vllm", "sglang"),
    [
        ({}, 0, 0),
        ({"max_position_embeddings": 40_960}, 40_960, 40_960),
        ({"max_position_embeddings": 8192, "seq_length": 4096}, 4096, 4096),
        ({"max_position_embeddings": 8192, "model_max_length": 131_072}, 131_072, 131_072),
        (
            {
                "max_position_embeddings": 131_072,
                "original_max_position_embeddings": 4096,
                "rope_scaling": {"type": "longrope"},
            },
            4096,
            131_072,
        ),
        (
            {
                "max_position_embeddings": 163_840,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 40,
                    "original_max_position_embeddings": 4096,
                },
            },
            163_840,
            163_840,
        ),
    ],
)
def test_the_longest_request_is_that_of_the_config(
    config: dict[str, Any], vllm: int, sglang: int
) -> None:
    found = memory_of_config({**known_models()["mistral-7b-v0.1"], **config}, "x")

    assert (vllm, sglang) == (found.longest("vllm"), found.longest("sglang"))


# Metadata of GGUF files: what real files have, and what damaged ones end with.

LOG = "docs/examples/hybrid.log"


def text(value: str, order: str = "<") -> bytes:
    return struct.pack(f"{order}Q", len(value)) + value.encode()


def header(*pairs: bytes, version: int = 3, order: str = "<", keys: int | None = None) -> bytes:
    count = len(pairs) if keys is None else keys
    return b"GGUF" + struct.pack(f"{order}IQQ", version, 0, count) + b"".join(pairs)


def number(key: str, value: int, order: str = "<") -> bytes:
    return text(key, order) + struct.pack(f"{order}II", 4, value)


NAME = text("general.architecture") + struct.pack("<I", 8) + text("llama")
NESTED = text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 2000
STRINGS = text("a") + struct.pack("<IIQ", 9, 8, 1 << 40)


def refused(data: bytes, folder: Path) -> str:
    file = folder / "model.gguf"
    file.write_bytes(data)
    with pytest.raises(InputError) as caught:
        sizes_of_gguf(file)
    return str(caught.value).removeprefix(f"--gguf {file}: ")


@pytest.mark.parametrize("name", ["dense", "hybrid", "hybrid-swa"])
def test_the_file_that_a_real_server_loads_has_the_keys_that_were_written(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.gguf"
    write_model(preset(name), file)
    expected = {key: model_key.value for key, model_key in model_keys(preset(name)).items()}
    found = read_header(file)

    assert list(expected) == list(found)
    assert sizes_of_fields(expected) == sizes_of_gguf(file)[0]


def test_a_file_of_the_other_byte_order_is_read(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(header(number("a", 7, ">"), order=">"))

    assert {"a": 7} == read_header(file)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is no GGUF file: it begins with b''"),
        (b"PK\3\4 and more", "is no GGUF file: it begins with b'PK"),
        (header(version=1), "is GGUF version 1; versions 2 and 3 are read"),
        (header(NESTED), "key 'a' is an array of arrays, which no model's header has"),
        (header(STRINGS), "key 'a' brings the strings to more than"),
        (header(keys=1 << 60), "has 1152921504606846976 keys"),
        (header(text("a") + struct.pack("<I", 77)), "key 'a' has a value of type 77"),
        (header(NAME), "has no usable key 'llama.block_count'"),
        (header(number("llama.block_count", 4)), "has no usable key 'general.architecture'"),
        (header(NAME, number("llama.block_count", 0)), "has no usable key 'llama.block_count'"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(data: bytes, why: str, tmp_path: Path) -> None:
    assert refused(data, tmp_path).startswith(why)


def test_a_file_that_is_cut_anywhere_in_its_header_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "whole.gguf"
    write_model(preset("dense"), file)
    whole = file.read_bytes()
    end = whole.index(b"tokenizer.ggml.tokens")

    for size in (*range(4, 600, 7), end, end + 100):
        assert "is cut: the file of" in refused(whole[:size], tmp_path)


@pytest.mark.parametrize("data", [header(NESTED), header(NAME, keys=5), b"GGUF\3"])
def test_tune_ends_with_status_2(data: bytes, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(data)

    assert 2 == main(["why", "--tune", LOG, "--gguf", str(file)])
    assert f"--gguf {file}" in " ".join(capsys.readouterr().err.split()).replace("\n", "")


BESIDE = (["x"], {"a": 1}, None, 5, True, "no such layer")


@pytest.mark.parametrize(
    "listed",
    [["x"], {"a": 1}, 5, True, "no such layer", *(["full_attention", each] for each in BESIDE)],
    ids=repr,
)
def test_layers_of_no_known_type_are_refused(listed: object) -> None:
    """Whatever JSON stands in place of a layer's name, or of the list of them."""
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    value = {**config, "model_type": "llama", "layer_types": listed}
    with pytest.raises(InputError, match=r"not counted|layers' types"):
        memory_of_config(value, "config.json")
