"""Facts about the fake server for tools."""

from dataclasses import dataclass, replace
from typing import Final

from cachesim.engines.family import Family, Package, Patch, Release
from cachesim.engines.option import Option, option
from cachesim.engines.search import Search


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRules:
    forgets: bool = False  # half of what is equal is forgotten
    skips_first: bool = False  # answers are those of a prompt without its first token


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOptions:
    parallel: int = option("-np, --parallel", "slots", default=1, low=1, high=64)
    ctx_size: int = option(
        "-c, --ctx-size",
        "cells",
        unit="tokens",
        default=4096,
        low=1,
        high=1 << 24,
        tried=(4096, 256),
    )
    keeps: bool = option("--keeps", "keep the last conversation", default=True, since="r2")


FAKE: Final[Family[FakeRules, FakeOptions]] = Family(
    name="fake",
    about="one slot, longest common prefix, replies as asked for",
    repository="nobody/fake",
    package=__package__,
    engine=f"{__package__}.server:FakeServer",
    releases=(
        Release(name="r1", about="as it should be", rules=FakeRules(), date="2026-01"),
        Release(
            name="r2",
            about="forgets",
            rules=FakeRules(forgets=True),
            aliases=("r2-rc1",),
            package=Package(name="fake", version="2"),
        ),
        Release(name="r3", about="skips", rules=FakeRules(skips_first=True)),
    ),
    patches=(
        Patch(
            name="7",
            pull=7,
            about="nothing is forgotten",
            fits=("r2",),
            lay=lambda rules: replace(rules, forgets=False),
            landed="r3",
        ),
    ),
    options=FakeOptions,
    fields=(Option(name="hurry", kind="yes or no", about="does nothing"),),
    has_slots=False,
    search=Search(may_decline=False, exercised={"request-served": "save"}),
)
