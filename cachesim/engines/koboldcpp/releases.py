"""Releases of KoboldCpp, as data."""

from typing import Final

from cachesim.engines.family import Release
from cachesim.engines.history import History, Merged
from cachesim.engines.koboldcpp.rules import KoboldRules
from cachesim.engines.llama_cpp_python.rules import MEMORY
from cachesim.engines.llamacpp.memory.rules import B9094

COMMITS: Final = (
    ("1.99.4", "b3a0ba5e3", "September 2025: no SmartCache, and few hybrids count as recurrent"),
    ("1.104", "e9ae0cb2d", "December 2025: SmartCache saves a state after each reply only"),
    ("1.115.1", "a06c915eb", "states are saved within a prompt too, and windows have few cells"),
    ("1.120", "062b30f36", "autumn 2026: a newer llama.cpp"),
)
"""Each release, oldest first: the commit that was read, its changes."""

ALL: Final = tuple(name for name, *_ in COMMITS)

OLDEST: Final = KoboldRules(
    memory=B9094,
    architectures=frozenset({"mamba", "mamba2", "nemotron_h", "jamba"}),
    replays_last=False,
    smartcache=False,
    checkpoints=False,
    least=0,
    small_windows=False,
    slots=3,
    windows_and_states=False,
)
"""The rules of 1.99.4."""

MERGED: Final[tuple[Merged, ...]] = (
    Merged(
        name="all-recurrent",
        about="every architecture with states counts as recurrent (1.100)",
        landed="1.104",
        sets={"architectures": frozenset()},
    ),
    Merged(
        name="replayed-last",
        about="a continued state first evaluates the token that was sampled last (1.100)",
        landed="1.104",
        sets={"replays_last": True},
    ),
    Merged(
        name="smartcache",
        about="--smartcache saves states in up to five slots",
        landed="1.104",
        sets={"smartcache": True, "slots": 5},
    ),
    Merged(
        name="least-prefix",
        about="a prefix of less than four tokens is not kept",
        landed="1.104",
        sets={"least": 4},
    ),
    Merged(
        name="states-within-prompts",
        about="states are saved within a prompt and before a reply; before, after it (1.110)",
        landed="1.115.1",
        sets={"checkpoints": True},
    ),
    Merged(
        name="small-windows",
        about="window layers have few cells unless --noswa is given (1.114)",
        landed="1.115.1",
        sets={"small_windows": True},
    ),
    Merged(
        name="windows-beside-states",
        about="its llama.cpp has memory for windows beside states (January 2026)",
        landed="1.115.1",
        sets={"windows_and_states": True},
    ),
    Merged(
        name="newer-memory",
        about="its llama.cpp is one of autumn 2026",
        landed="1.120",
        sets={"memory": MEMORY},
    ),
)

HISTORY: Final = History(OLDEST, ALL, MERGED)
RELEASES: Final = tuple(
    Release(name=name, about=about, rules=HISTORY.rules(name), upstream=commit)
    for name, commit, about in COMMITS
)
