"""Traces of every form, and plans of sweeps: seeds, how they are damaged, how they are played."""

import json
import os
import tomllib
import zlib
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

from cachesim.report.consoles import plain_text
from cachesim.report.sweep import sweep_report
from cachesim.traces.plan import SERVER_KEYS, TRACE_KEYS, read_plan
from cachesim.traces.reading import FIELDS, KNOWN
from cachesim.traces.replay import BOUND, Cell, play, row_of
from cachesim.traces.source import Source
from conformance.fuzz.guard import READ
from conformance.fuzz.mutations import (
    SLIGHTLY,
    Chance,
    damaged_bytes,
    damaged_text,
    damaged_tree,
    varied,
)

ROOT: Final = Path(__file__).parents[2]
PLAYED: Final = 12
"""Requests of a mutant that are played."""

AFFORDABLE: Final = 12_000
"""Their tokens; larger ones are read and checked only."""

FEW: Final = 9
"""Requests of a plan's trace that are played."""

SERVERS: Final = (
    (BOUND, "hybrid", ()),
    ("llama.cpp@b11549", "hybrid", (("parallel", 2), ("ctx_size", 4096))),
    ("ik_llama.cpp@8337e4cd3", "dense", (("ctx_size", 4096),)),
    ("mlx-lm@0.32.2", "hybrid", ()),
    ("vllm@0.33.0", "hybrid", (("num_gpu_blocks_override", 300),)),
    ("sglang@0.5.23", "dense", (("page_size", 16), ("max_total_tokens", 4096))),
    ("marconi@paper", "hybrid", ()),
)


@cache
def traces() -> tuple[dict[str, Any], ...]:
    """A few requests as Mooncake, Bailian, `why`, vLLM and SGLang write them."""
    turns = ((3, 20), (4, 30), (2, 9), (5, 1), (3, 20))
    mooncake: list[dict[str, Any]] = [
        {
            "timestamp": 500 * at,
            "input_length": 512 * blocks - 3,
            "output_length": output,
            "hash_ids": [*range(blocks - 1), 10 * at + 90],
        }
        for at, (blocks, output) in enumerate(turns)
    ]
    bailian = [
        {
            "chat_id": at,
            "parent_chat_id": at - 1,
            "turn": at + 1,
            "type": "text",
            **each,
            "input_length": 16 * len(each["hash_ids"]) - 3,
        }
        for at, each in enumerate(mooncake)
    ]
    texts = [
        {"timestamp": 90 * at, "prompt": [[0, 0, 120], [at, 0, 15]], "reply": [[at + 50, 0, 8]]}
        for at in range(1, 5)
    ]
    stored: list[tuple[int, list[Any], Any]] = [
        (at, ["a", f"b{at}", 3], None) if at % 2 else (at, [at], f"b{at - 1}") for at in range(1, 6)
    ]
    events: list[dict[str, Any]] = [
        {
            "ts": float(at),
            "events": [
                {
                    "type": KNOWN[0],
                    "block_hashes": hashes,
                    "parent_block_hash": parent,
                    "token_ids": [1] * 16 * len(hashes),
                    "block_size": 16,
                    "lora_id": None,
                    "medium": "GPU",
                },
                {"type": KNOWN[1], "block_hashes": [3]},
            ],
        }
        for at, hashes, parent in stored
    ]
    listed = [
        [batch["ts"], [[each["type"], *(each.get(key) for key in FIELDS)] for each in own]]
        for batch in events
        for own in (batch["events"],)
    ]
    return tuple({"lines": each} for each in (mooncake, bailian, texts, events, listed))


def damage_trace(seed: Any, chance: Chance) -> bytes:
    keys: tuple[str, ...] = ("timestamp", "input_length", "output_length", "hash_ids", "prompt")
    keys += ("reply", "ts")
    keys += ("events", "type", "group_idx", "kv_cache_spec_kind", *FIELDS)
    gentle = chance.random() < SLIGHTLY
    tree = (
        varied(seed, chance) if gentle else damaged_tree(seed, chance, others=traces(), keys=keys)
    )
    found = tree.get("lines") if isinstance(tree, dict) else tree
    lines = found if isinstance(found, list) else [found]
    text = "\n".join(json.dumps(line) for line in lines)
    if not gentle and chance.random() < 0.1:
        return damaged_bytes(text.encode(), chance)
    if not gentle and chance.random() < 0.4:
        text = damaged_text(text, chance)
    return text.encode(errors="surrogatepass")


def play_trace(mutant: bytes) -> str | None:
    """As `replay` does, on one server; the mutant chooses which, and whether time counts."""
    dice = zlib.crc32(mutant)
    profile, model, options = SERVERS[dice % len(SERVERS)]
    path = Path(gettempdir(), f"cachesim-mutant-{os.getpid()}.jsonl")
    path.write_bytes(mutant)
    try:
        source = Source(name=str(path), first=PLAYED, turn=dice % 3 * 40)
        if sum(request.length + request.output for request in source.open()[1]) > AFFORDABLE:
            return READ
        cell = Cell(source=source, profile=profile, model=model, options=options)
        plain_text(*sweep_report([row_of(cell, play(cell))]))
    finally:
        path.unlink()
    return None


@cache
def plans() -> tuple[dict[str, Any], ...]:
    """The plan that is shipped, and one with a value of every key."""
    shipped = tomllib.loads((ROOT / "benchmarks" / "conversation.toml").read_text())
    for each in shipped["trace"]:
        each["file"] = "x"  # the published one is not beside the plan
    every: dict[str, Any] = {
        "format": 1,
        "trace": [
            {"made": [20, 30], "seed": 7, "first": FEW},
            {"file": "x", "turn": 9, "unit": 16},
        ],
        "server": [
            {"profile": [f"vllm@{each}" for each in ("0.30.0", "0.33.0")], "model": "dense"},
            *(
                {"profile": profile, "model": [model], "set": dict(options)}
                for profile, model, options in SERVERS[1:]
            ),
        ],
    }
    return shipped, every


def damage_plan(seed: Any, chance: Chance) -> bytes:
    names = (*TRACE_KEYS, *SERVER_KEYS, *(name for _, _, flags in SERVERS for name, _ in flags))
    if chance.random() < SLIGHTLY:
        return toml(varied(seed, chance)).encode()
    tree = damaged_tree(seed, chance, others=plans(), keys=tuple(sorted(names)))
    text = toml(tree) if isinstance(tree, dict) else repr(tree)
    if chance.random() < 0.05:
        return damaged_bytes(text.encode(errors="surrogatepass"), chance)
    if chance.random() < 0.2:
        text = damaged_text(text, chance)
    return text.encode(errors="surrogatepass")


def play_plan(mutant: bytes) -> str | None:
    """As `sweep` does: the plan is read, every cell checked; one with few requests is played."""
    path = Path(gettempdir(), f"cachesim-mutant-{os.getpid()}.toml")
    path.write_bytes(mutant)
    line = {"timestamp": 0, "input_length": 700, "output_length": 3, "hash_ids": [1, 2]}
    (path.parent / "x").write_text("".join(f"{json.dumps(line)}\n" for _ in range(3)))
    try:
        cells = read_plan(path)
        cell = cells[zlib.crc32(mutant) % len(cells)]
        if not cell.source.name.startswith("made:") or cell.source.first != FEW:
            return READ
        plain_text(*sweep_report([row_of(cell, play(cell))]))
    finally:
        path.unlink()
    return None


def toml(tree: dict[Any, Any]) -> str:
    """A tree as TOML, as far as TOML can say it; what it cannot say makes a file that is wrong."""
    return "\n".join(f"{json.dumps(str(key))} = {_inline(value)}" for key, value in tree.items())


def _inline(value: Any) -> str:
    match value:
        case dict():
            pairs = (f"{json.dumps(str(key))} = {_inline(each)}" for key, each in value.items())
            return "{" + ", ".join(pairs) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_inline, value)) + "]"
        case float():
            return repr(value)
        case _:
            return json.dumps(value)
