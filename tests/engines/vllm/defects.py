"""The known wrong answers of vLLM, put back one at a time, for a search that is not told where."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cachesim.engines.family import Profile
from cachesim.scenario.format import Kind
from cachesim.testing.search import Report, search
from cachesim.testing.workloads import Shape

FIXED: Final = "+43569+padded-first+cuts-at-states"
"""Patches of 0.33.0 without a wrong answer."""

EARLIER: Final = "+39273+43569"
"""Further patches of a release before 0.32."""

MOST_REQUESTS: Final = 4

MIXED: Final = {"speculative_method": "eagle", "block_size": 16, "drafter_block_size": 4}
"""A drafter whose layer has smaller blocks than the target's states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A profile with one defect, the model that shows it, and the one that has none."""

    about: str
    profile: str
    cured: str
    model: str = "hybrid"
    flags: Mapping[str, Any] = field(default_factory=dict)  # of every server of the search

    def hunt(self, profile: str = "", *, examples: int = 400, only: Kind | None = None) -> Report:
        shape = Shape(fixed=dict(self.flags), longest=100 if self.flags else 200)
        named = Profile.parse(f"vllm@{profile or self.profile}")
        return search(named, self.model, examples=examples, shape=shape, only=only)


DEFECTS: Final = (
    Defect(
        about="a state of this step is hit in this step (#29387)",
        profile=f"0.33.0{FIXED}+no-29387",
        cured=f"0.33.0{FIXED}",
    ),
    Defect(
        about="attention's hit without a state (#43090)",
        profile=f"0.33.0{FIXED}+47491",
        cured=f"0.33.0{FIXED}",
    ),
    Defect(
        about="recurrent groups are granted a block more (#43559)",
        profile=f"0.24.0{EARLIER}+44243-agreed",
        cured=f"0.24.0{EARLIER}+44243-agreed+46281",
    ),
    Defect(
        about="the same, put back",
        profile=f"0.28.0{EARLIER}-states-without-margin",
        cured=f"0.28.0{EARLIER}",
    ),
    Defect(
        about="a group takes blocks before another one holds its hit (#33775)",
        profile=f"0.33.0{FIXED}-44409",
        cured=f"0.33.0{FIXED}",
        model="swa",
        flags={
            "connector": "store",
            "block_size": 4,
            "num_gpu_blocks_override": 40,
            "prefix_cache_retention_interval": -1,
        },
    ),
    Defect(
        about="a state's entry in the wrong unit (#55600)",
        profile=f"0.30.0{EARLIER}+cuts-at-states",
        cured=f"0.30.0{EARLIER}+55601+cuts-at-states",
        flags=MIXED,
    ),
    Defect(
        about="a chunk passes the end of a state's block", profile="0.33.0+43569+padded-first",
        cured=f"0.33.0{FIXED}", flags=MIXED,
    ),
    Defect(
        about="the same, put back", profile=f"0.33.0{FIXED}-55601", cured=f"0.33.0{FIXED}",
        flags=MIXED,
    ),
    Defect(
        about="a plain step after accepted drafts (#39273)",
        profile="0.31.0+43569+55601",
        cured=f"0.31.0{EARLIER}+55601",
        model="hybrid-delta",
    ),
    Defect(
        about="the same, put back", profile=f"0.33.0{FIXED}-39273", cured=f"0.33.0{FIXED}",
        model="hybrid-delta",
    ),
    Defect(
        about="a step of no drafts after accepted ones, in Model Runner V1 (#40875)",
        profile="0.28.0+43569",
        cured=f"0.28.0{EARLIER}",
    ),
    Defect(
        about="published, and the chunk of an aborted request skipped (#56525)",
        profile="0.33.0+skips-aborted",
        cured=f"0.33.0{FIXED}+skips-aborted",
    ),
    Defect(
        about="with a store, attention's hit where no state is (#48195)",
        profile=f"0.24.0{EARLIER}+46281",
        cured=f"0.24.0{EARLIER}+46281+44243-agreed",
        flags={"connector": "store"},
    ),
    Defect(
        about="a window one block short", profile=f"0.33.0{FIXED}+window-one-short",
        cured=f"0.33.0{FIXED}", model="swa",
    ),
)  # fmt: skip
"""Every patch that puts a defect back, and every defect that a release has."""
