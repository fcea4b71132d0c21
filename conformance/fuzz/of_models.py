"""Configurations and headers of models, states of replays, reports: seeds, damage, play."""

import json
import os
import zlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, Final

from cachesim.errors import InputError
from cachesim.model.presets import preset
from cachesim.prove.llama_cpp.gguf import model_keys, write_model
from cachesim.traces import graph
from cachesim.traces.replay import Cell, ServerRun
from cachesim.traces.source import Source
from cachesim.why.from_report import draft_of
from cachesim.why.infer.model_memory import known_models, memory_of_config
from cachesim.why.infer.sizes import sizes_of_fields, sizes_of_gguf
from conformance.fuzz.mutations import (
    SLIGHTLY,
    Chance,
    damaged_bytes,
    damaged_text,
    damaged_tree,
    varied,
)

ROOT: Final = Path(__file__).parents[2]
MODELS: Final = ("dense", "swa", "recurrent", "hybrid")


@cache
def configs() -> tuple[dict[str, Any], ...]:
    """The configurations that are known by their names."""
    return tuple(json.loads(json.dumps(model)) for model in known_models().values())


def damage_config(seed: Any, chance: Chance) -> Any:
    if chance.random() < SLIGHTLY:
        return varied(seed, chance)
    keys = tuple(sorted({key for config in configs() for key in config}))
    return damaged_tree(seed, chance, others=configs(), keys=keys)


def play_config(mutant: Any) -> None:
    memory_of_config(mutant, "config.json")


@cache
def headers() -> tuple[bytes, ...]:
    """The headers of small models as files."""
    found = []
    with TemporaryDirectory() as folder:
        for name in MODELS:
            path = Path(folder, f"{name}.gguf")
            write_model(preset(name), path)
            found.append(path.read_bytes()[: 1 << 15])
    return tuple(found)


def damage_header(seed: bytes, chance: Chance) -> Any:
    """Bytes, or the keys of a header, one of which is another number."""
    if chance.random() < SLIGHTLY:
        keys = model_keys(preset(chance.choice(MODELS)))
        return varied({name: key.value for name, key in keys.items()}, chance)
    return damaged_bytes(seed, chance)


def play_header(mutant: Any) -> None:
    if isinstance(mutant, dict):
        sizes_of_fields(mutant)
        return
    path = Path(gettempdir(), f"cachesim-mutant-{os.getpid()}.gguf")
    path.write_bytes(mutant)
    try:
        sizes_of_gguf(path)
    finally:
        path.unlink()


@cache
def states() -> tuple[dict[str, Any], ...]:
    """States of replays in their beginning, as tables."""
    found = []
    for profile, model in (("vllm@0.33.0", "hybrid"), ("llama.cpp@b11549", "dense")):
        run = ServerRun(Cell(source=Source(name="made:9"), profile=profile, model=model))
        writer = graph.Writer()
        table = json.loads(writer.text(run))
        found.append({"table": table, "arrays": list(writer.arrays)})
    return tuple(found)


def damage_state(seed: Any, chance: Chance) -> Any:
    if chance.random() < SLIGHTLY:
        return {**seed, "table": varied(seed["table"], chance)}
    return damaged_tree(seed, chance, others=states(), keys=("root", "nodes"))


def play_state(mutant: Any) -> None:
    """A state that cannot be read is refused; one that can is not played: its digest is checked."""
    try:
        arrays = bytes(mutant["arrays"])
    except (TypeError, ValueError, KeyError):
        raise InputError("no bytes") from None
    try:
        graph.read(json.dumps(mutant.get("table")).encode(), arrays)
    except graph.DamagedError as error:
        raise InputError(str(error)) from None


@cache
def reports() -> tuple[str, ...]:
    """Reports as users paste them: logs, scenarios, pages of these docs."""
    paths = [*sorted((ROOT / "docs" / "examples").glob("*.log")), ROOT / "README.md"]
    texts = [path.read_text(encoding="utf-8", errors="replace")[:20_000] for path in paths]
    return tuple(texts)


def damage_report(seed: str, chance: Chance) -> str:
    return damaged_text(seed, chance) if chance.random() < 0.8 else seed * chance.randrange(1, 4)


def play_report(mutant: str) -> None:
    data = mutant.encode("utf-8", "surrogatepass")
    draft_of(f"m{zlib.crc32(data)}", data, source="report")
