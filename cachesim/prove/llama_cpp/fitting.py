"""Which scenarios the real server of a release can run, and of which the answer is judged.

`cachesim run` asks this for the line "prove it", so nothing here starts, reads or writes anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias, get_args

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.options import Drafting
from cachesim.scenario.checks import full_profile
from cachesim.scenario.format import Scenario, Step

Release: TypeAlias = str
"""A release of llama.cpp that a wheel runs."""


WRITTEN: Final = "chatml"
"""The chat template that is in the model file."""


def hurdle(scenario: Scenario, number: int) -> str:
    """The reason why a step is not run on the real server; nothing where it is."""
    step = scenario.step[number]
    same_call = step.with_previous and not step.turns
    before = scenario.step[number - 1] if same_call else step
    alike = all(
        getattr(step, field) == getattr(before, field)
        for field in ("predict", "slot", "cache_prompt", "options")
    )
    replies = [sent.reply for sent in (before, step) if sent.forced]
    lengths = {len(reply) for reply in replies if isinstance(reply, tuple)}
    hurdles: Sequence[tuple[bool, str]] = (
        (not alike, "what goes out in one call asks for the same predict, slot and options"),
        (len(lengths) > 1, "what goes out in one call gets replies of one length"),
        (step.do == "cancel", "'cancel' depends on the real server's clock"),
        (
            bool(step.messages) and scenario.chat.template != WRITTEN,
            f"its model file's chat template is {WRITTEN}",
        ),
        (bool(scenario.images), "its server has no image projector"),
        (bool(scenario.model.sizes), "bytes are those of another model"),
        (bool(step.drafts) and step.forced, "a real companion proposes drafts of its own"),
    )
    return next((why for stands, why in hurdles if stands), "")


PRESETS: Final[Mapping[str, int]] = {
    "dense": 0,
    "swa": 0,
    "recurrent": 0,
    "hybrid": 0,
    "hybrid-delta": 0,
    "hybrid-swa": 0,
    "hybrid-mtp": 9294,
}
"""Preset -> the first build whose server loads such a model."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """The flags and presets of one release's server."""

    release: Release

    def has(self, flag: str) -> bool:
        """True where the server has such a flag; a new build has those of the one before."""
        return nearest_release(self.release) in FAMILY.having(FAMILY.option(flag))

    @property
    def presets(self) -> tuple[str, ...]:
        build = _build_of(self.release)
        return tuple(preset for preset, first in PRESETS.items() if first <= build)

    @property
    def unloadable(self) -> frozenset[str]:
        """Presets that only later releases load."""
        return frozenset(PRESETS) - frozenset(self.presets)


def _build_of(release: Release) -> int:
    return int(release.removeprefix("b"))


def nearest_release(release: Release) -> Release:
    """The known release that describes a build best: the last one until then, else the first."""
    until = [name for name in FAMILY.names() if _build_of(name) <= _build_of(release)]
    return until[-1] if until else FAMILY.names()[0]


def drafting(options: Mapping[str, Any]) -> bool:
    """True with a draft model; n-gram drafts are not compared."""
    return options.get("spec_type", "none") in get_args(Drafting)


BATCH: Final = 2048
"""Tokens that a server reads before it looks for further requests, by default."""


def fits(scenario: Scenario) -> bool:
    """True if the real llama-server can run a workload, and no clock decides how it ends."""
    steps = scenario.step
    if drafting(scenario.engine.options):
        return False  # drafts are the companion's own there
    profiles = (full_profile("llama.cpp", profile) for profile in scenario.engine.profiles)
    if any(scenario.model.preset in Abilities(profile.release).unloadable for profile in profiles):
        return False
    if any(hurdle(scenario, number) for number in range(len(steps))):
        return False
    return all(
        step.turns == 1
        and "batch_size" not in scenario.engine.options
        and len(before.prompt or ()) > BATCH
        for before, step in pairwise(steps)
        if step.turns
    )


def shows(step: Step) -> bool:
    """True if an answer can be compared with an uncached one: a chat's has no probabilities."""
    return not step.messages
