"""A toy image projector (mmproj) and pictures for it: random weights, as of LLaVA's `mlp`."""

import base64
import struct
import zlib
from pathlib import Path
from typing import Final

import numpy as np

from cachesim.prove.llama_cpp.gguf import Value, f32, flag, text, u32, write_gguf
from cachesim.units import Array

SIDE: Final = 32
PATCH: Final = 8
TOKENS: Final = (SIDE // PATCH) ** 2
"""Tokens of a picture: one for each patch."""

WIDTH: Final = 32


def write_projector(path: Path, width: int) -> None:
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    vision: dict[str, Value] = {
        "image_size": u32(SIDE),
        "patch_size": u32(PATCH),
        "embedding_length": u32(WIDTH),
        "feed_forward_length": u32(2 * WIDTH),
        "block_count": u32(1),
        "attention.head_count": u32(2),
        "attention.layer_norm_epsilon": f32(1e-5),
        "projection_dim": u32(width),
        "image_mean": f32([0.5] * 3),
        "image_std": f32([0.5] * 3),
    }
    keys = {
        "general.architecture": text("clip"),
        "clip.has_vision_encoder": flag(value=True),
        "clip.projector_type": text("mlp"),
        "clip.use_gelu": flag(value=True),
        **{f"clip.vision.{name}": value for name, value in vision.items()},
    }
    matrices = {
        **{f"v.blk.0.attn_{each}": (WIDTH, WIDTH) for each in ("q", "k", "v", "out")},
        "v.blk.0.ffn_down": (2 * WIDTH, WIDTH),
        "v.blk.0.ffn_up": (WIDTH, 2 * WIDTH),
        "mm.0": (width, WIDTH),
        "mm.2": (width, width),
    }
    tensors = {
        "v.class_embd": drawn(WIDTH),
        "v.patch_embd.weight": drawn(WIDTH, 3, PATCH, PATCH),
        "v.position_embd.weight": drawn(TOKENS + 1, WIDTH),
    }
    for name, shape in matrices.items():
        tensors[f"{name}.weight"] = drawn(*shape)
        tensors[f"{name}.bias"] = np.zeros(shape[0], np.float32)
    for name in ("v.pre_ln", "v.blk.0.ln1", "v.blk.0.ln2"):
        tensors[f"{name}.weight"] = np.ones(WIDTH, np.float32)
        tensors[f"{name}.bias"] = np.zeros(WIDTH, np.float32)
    with path.open("wb") as out:
        write_gguf(out, keys, tensors)


def picture(seed: int) -> str:
    """A picture of random colours, as base64 of a PNG file."""
    colours = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in colours)

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    file = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
    return base64.b64encode(file).decode()
