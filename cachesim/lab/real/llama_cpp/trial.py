"""Rules and defaults that are tried in place of a release's own."""

from dataclasses import dataclass, replace

from cachesim.engines.family import Family
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.options import Options
from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.lab.real.llama_cpp.abilities import Abilities, nearest_release
from cachesim.lab.real.llama_cpp.workload import release_of
from cachesim.scenario.format import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Flags whose default differs from release to release; a server without them ignores them."""

    checkpoint_min_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Rules and defaults that are tried in place of a release's own."""

    rules: ServerRules
    defaults: Defaults

    def asked(self, workload: Scenario) -> Scenario:
        """The workload with the defaults written out, where the server has such flags."""
        if not Abilities(release_of(workload)).has("checkpoint_min_step"):
            return workload
        spacing = {"checkpoint_min_step": self.defaults.checkpoint_min_step}
        options = spacing | dict(workload.engine.options)
        return replace(workload, engine=replace(workload.engine, options=options))

    def family(self, release: str) -> Family[ServerRules, Options]:
        """llama.cpp with these rules in place of those of a build's nearest release."""
        near = nearest_release(release)
        releases = (
            replace(each, rules=self.rules) if each.name == near else each
            for each in FAMILY.releases
        )
        return replace(FAMILY, releases=tuple(releases))


def known_trials() -> dict[str, Trial]:
    """Every release that there is a profile of, as something to begin with."""
    spacing = FAMILY.option("checkpoint_min_step")
    return {
        each.name: Trial(
            rules=each.rules,
            defaults=Defaults(checkpoint_min_step=FAMILY.default(spacing, each.name)),
        )
        for each in FAMILY.releases
    }
