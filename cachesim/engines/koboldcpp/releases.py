"""Releases of KoboldCpp."""

from typing import Final

from cachesim.engines.family import Release
from cachesim.engines.koboldcpp.rules import (
    OF_1_99,
    OF_1_104,
    OF_1_115,
    OF_1_120,
)

RELEASES: Final = (
    Release(
        name="1.99.4",
        about="September 2025: no SmartCache, and few hybrids count as recurrent",
        rules=OF_1_99,
        upstream="b3a0ba5e3",
    ),
    Release(
        name="1.104",
        about="December 2025: SmartCache saves a state after each reply only",
        rules=OF_1_104,
        upstream="e9ae0cb2d",
    ),
    Release(
        name="1.115.1",
        about="states are saved within a prompt too, and windows have few cells",
        rules=OF_1_115,
        upstream="a06c915eb",
    ),
    Release(
        name="1.120",
        about="autumn 2026: a newer llama.cpp",
        rules=OF_1_120,
        upstream="062b30f36",
    ),
)
