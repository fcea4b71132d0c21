"""GGUF headers of every architecture that `tune` knows: `tune --gguf` on good and damaged files."""

import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from cachesim.model.presets import PRESETS, preset
from cachesim.prove.llama_cpp.gguf import Value, f32, model_keys, text, u32, write_gguf
from cachesim.why.infer.sizes import PATTERNS
from conformance.end_to_end.bench import Bench, Case, Result, Settings, Task, bench
from conformance.end_to_end.program import Ran

LOG: Final = Path(__file__).parents[2] / "docs" / "examples" / "hybrid.log"
DAMAGED: Final = frozenset({0, 2})
FILE: Final = "model.gguf"
DAMAGED_ONE_OF: Final = 4


def headers() -> Iterator[tuple[str, dict[str, Value]]]:
    """Every architecture by name, and the keys of a model of it."""
    for name in PRESETS:
        yield f"preset {name}", model_keys(preset(name))
    for name in ("llama", "qwen2", "qwen3", "mistral3", "deepseek2", "glm4", "phi3"):
        yield name, attention(name)
    for name in PATTERNS:
        windows = {f"{name}.attention.sliding_window": u32(1024)}
        yield f"{name} with windows", attention(name) | windows
        told = {f"{name}.attention.sliding_window_pattern": u32(4)}
        yield f"{name} with a pattern", attention(name) | windows | told
    for name in ("mamba2", "granitehybrid", "nemotron_h", "falcon-h1", "qwen3next", "qwen35"):
        yield name, attention(name) | states(name)
    per_layer = {"nemotron_h.attention.head_count_kv": u32([0, 8] * 16)}
    yield "nemotron_h by layer", attention("nemotron_h") | states("nemotron_h") | per_layer
    interval = {"qwen35.full_attention_interval": u32(4), "qwen35.nextn_predict_layers": u32(1)}
    yield "qwen35 by interval", attention("qwen35") | states("qwen35") | interval
    short = {"lfm2.shortconv.l_cache": u32(3), "lfm2.attention.head_count_kv": u32([0, 8] * 16)}
    yield "lfm2 with convolutions", attention("lfm2") | short


def attention(name: str) -> dict[str, Value]:
    keys = {
        "block_count": u32(32),
        "embedding_length": u32(4096),
        "attention.head_count": u32(32),
        "attention.head_count_kv": u32(8),
        "attention.key_length": u32(128),
        "attention.value_length": u32(128),
        "rope.freq_base": f32(1e6),
    }
    own = {f"{name}.{key}": value for key, value in keys.items()}
    return {"general.architecture": text(name), "general.name": text(f"a {name}"), **own}


def states(name: str) -> dict[str, Value]:
    """Keys of recurrent layers."""
    keys = {"inner_size": 8192, "state_size": 128, "conv_kernel": 4, "group_count": 8}
    return {f"{name}.ssm.{key}": u32(value) for key, value in keys.items()}


def written(keys: dict[str, Value]) -> bytes:
    """A file with these keys and one tensor."""
    out = io.BytesIO()
    write_gguf(out, keys, {"token_embd.weight": np.zeros((4, 4), dtype=np.float32)})
    return out.getvalue()


def nested(depth: int) -> bytes:
    """A key whose value is a list of lists of lists."""
    key = b"general.architecture"
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", len(key)) + key
    return head + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * depth


def damaged(data: bytes, rng: Random) -> Iterator[tuple[str, bytes]]:
    """Damage of files on disks and in downloads."""
    yield "cut.gguf", data[: rng.randrange(1, len(data))]
    yield "head.gguf", data[: rng.choice((0, 1, 3, 4, 8, 16, 24))]
    at = rng.randrange(4, len(data))
    yield "changed.gguf", data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    yield "swapped.gguf", data[:4] + data[4:8][::-1] + data[8:]
    many = struct.pack("<Q", rng.choice((2**63, 2**40, 2**31)))
    yield "many.gguf", data[:16] + many + data[24:]
    yield "other.gguf", rng.choice((b"PK\x03\x04", b"\x1f\x8b", b"not a model", b"\x00" * 99))


def tasks(settings: Settings) -> Iterator[Task]:
    """One task: a header takes little."""
    every = 1 if settings.whole else DAMAGED_ONE_OF
    yield Task(name="headers", do=of_headers, given=(settings.seed, every))


def of_headers(seed: int, every: int) -> Result:
    """`tune --gguf` on each; one in so many is damaged too."""
    result = Result()
    log = b"".join(LOG.read_bytes().splitlines(keepends=True)[:31])
    for number, (name, keys) in enumerate(headers()):
        rng = Random(f"header {name} {seed}")
        with bench("header", result) as place:
            place.put("server.log", log)
            _tuned(place, written(keys), number)
            for file, data in damaged(written(keys), rng) if number % every == 0 else ():
                place.put(file, data)
                words = ["why", "--tune", "server.log", "--gguf", file]
                place.try_(Case(words=words, form="--gguf", statuses=DAMAGED))
    with bench("header", result) as place:
        place.put("server.log", log)
        for depth in (1, 50, 5_000):
            place.put("nested.gguf", nested(depth))
            words = ["why", "--tune", "server.log", "--gguf", "nested.gguf"]
            place.try_(Case(words=words, form="--gguf", statuses=frozenset({2})))
        words = ["why", "--tune", "server.log", "--gguf", "missing.gguf"]
        place.try_(Case(words=words, form="--gguf", statuses=frozenset({2})))
    return result


def _tuned(place: Bench, data: bytes, number: int) -> None:
    place.put(FILE, data)
    words = ["why", "--tune", "server.log", "--gguf", FILE]
    match number % 3:
        case 0:
            place.try_(Case(words=words, form="--gguf"))
        case 1:
            place.try_(Case(words=[*words, "--format", "json"], form="json", extra=_has_sizes))
        case _:
            page = [*words, "--report", "tune.html"]
            place.try_(Case(words=page, form="--report", writes=("tune.html",)))


def _has_sizes(ran: Ran) -> Iterator[str]:
    found: dict[str, Any] = json.loads(ran.out)
    if found["sizes"] != "given":
        yield f"the bytes are {found['sizes']}, and the file gives them"
