"""What there is: engines, releases, patches, presets, each with a line and its upstream place."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachesim.model.presets import PRESETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One line of a list."""

    name: str
    about: str
    upstream: str = ""
    fits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is known of one engine beside its code."""

    about: str
    repository: str
    releases: Mapping[str, str]
    patches: Mapping[str, str]  # where the engine's own table does not say


FAMILIES: Final = {
    "llama.cpp": Family(
        about="llama-server: slots, prompt cache in RAM, context checkpoints",
        repository="ggml-org/llama.cpp",
        releases={
            "b9093": "May 2026",
            "b9538": "June 2026; has the cache rules of b9509",
            "b11549": "October 2026; has the cache rules of b11434",
        },
        patches={},
    ),
    "ik_llama.cpp": Family(
        about="llama.cpp's sibling: tolerant matching, checkpoints while generating, companions",
        repository="ikawrakow/ik_llama.cpp",
        releases={"d2da6da05": "the base of #1889", "8337e4cd3": "autumn 2026"},
        patches={},
    ),
    "mlx-lm": Family(
        about="mlx_lm.server: prompt trie, cache classes per layer, batches",
        repository="ml-explore/mlx-lm",
        releases={
            "0.30.7": "no checkpoints",
            "after-906": "main after #906, on which #923 stands",
            "0.31.0": "one checkpoint per request (#911)",
            "0.31.1": "one checkpoint per request (#911)",
            "0.31.1-main": "main after 0.31.1, on which #1006 stands",
            "after-1019": "main after #1019",
            "0.31.2": "segments (#1072)",
            "0.31.3": "segments (#1072)",
            "0.32.2": "segments; empty prompts refused",
        },
        patches={
            "999": "rotating caches unroll when they are trimmed",
            "1186": "an untrimmed hybrid cache is reused from the common prefix on",
            "1253": "a trim resets the recurrent state",
            "1254": "a trim resets the recurrent state",
            "923": "snapshots at message boundaries",
            "929": "#923 with all three mends of #929",
            "929.1": "#923 with the first mend: always a snapshot at the last boundary",
            "929.2": "#923 with the second mend: a boundary after every message",
            "929.3": "#923 with the third mend: each layer is trimmed that can be",
            "1006.1": "checkpoint before the last user message, first commit",
            "1006.2": "the same, second commit: padded tails",
            "1006": "the same, last commit: a checkpoint at each request's own distance",
        },
    ),
}
"""Facts about the engines' upstreams."""

MODULES: Final = {
    "llama.cpp": "cachesim.engines.llamacpp.profiles",
    "ik_llama.cpp": "cachesim.engines.ik_llama.rules",
    "mlx-lm": "cachesim.engines.mlx_lm.profiles",
}
"""Where each engine keeps its tables of releases and patches."""

FAMILY_OF_PRESET: Final = {
    "dense": "Llama: full attention",
    "swa": "Gemma 3: every second layer sees a window of 32",
    "recurrent": "Mamba-2: no attention at all",
    "hybrid": "Granite 4 hybrid: Mamba-2, every third layer attends",
    "hybrid-delta": "Qwen 3.5: gated delta nets, every second layer attends",
    "hybrid-swa": "LFM2 with a window: short convolutions, every second layer sees a window",
    "hybrid-mtp": "Qwen 3.5 with its head that guesses a further token",
}


def engines() -> list[Item]:
    """The engines that are built in."""
    from cachesim.engines.base import Engine  # noqa: PLC0415 - loads NumPy

    return [_engine(name) for name in sorted(Engine.families)]


def _engine(name: str) -> Item:
    family = FAMILIES.get(name)
    if family is None:
        return Item(name=name, about="an engine of your own")
    return Item(name=name, about=family.about, upstream=family.repository)


def releases() -> list[Item]:
    """Every release of every engine."""
    return [
        Item(name=f"{name}@{release}", about=about, upstream=f"{family.repository} {release}")
        for name, family in FAMILIES.items()
        for release, about in family.releases.items()
    ]


def patches() -> list[Item]:
    """Every patch, with the releases it fits."""
    return [item for name in FAMILIES for item in _patches(name)]


def _patches(engine: str) -> Iterator[Item]:
    family = FAMILIES[engine]
    table = patch_table(engine)
    for name in dict.fromkeys([*table, *family.patches]):
        patch = table.get(name)
        number = name.partition(".")[0].partition("-")[0]
        upstream = f"{family.repository}#{number}" if number.isdigit() else "our own name"
        yield Item(
            name=f"{engine} +{name}",
            about=getattr(patch, "about", "") or family.patches.get(name, ""),
            upstream=getattr(patch, "upstream", "") or upstream,
            fits=tuple(getattr(patch, "fits", ()) or getattr(patch, "releases", ())),
        )


def patch_table(engine: str) -> Mapping[str, Any]:
    """The engine's own table of patches."""
    module = importlib.import_module(MODULES[engine])
    table: Mapping[str, Any] = getattr(module, "PATCHES", {})
    return table


def presets() -> list[Item]:
    """The models by name."""
    return [Item(name=name, about=FAMILY_OF_PRESET.get(name, "")) for name in PRESETS]
