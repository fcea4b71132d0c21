"""Releases and flags: plain data, without an import of the engine."""

from dataclasses import dataclass

from cachesim.engines.family import Family, Release
from cachesim.engines.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Differences between releases."""

    block: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Flags of the server."""

    entries: int = option("--entries", "kept prompts", default=8, low=1, high=4096, tried=(8, 1))


FAMILY: Family[Rules, Options] = Family(
    name="my-engine",
    about="a prefix cache: a state after each block of tokens, evicted by prompt",
    repository="me/my-engine",
    package=__package__,
    engine=f"{__package__}.server:Server",
    releases=(Release(name="1.0", about="the first release", rules=Rules()),),
    options=Options,
    search=f"{__package__}.search:SEARCH",
    has_slots=False,
)
