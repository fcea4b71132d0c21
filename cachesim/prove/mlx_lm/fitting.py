"""Which scenarios mlx-lm's own server can run, and of which the answer is judged."""

from cachesim.engines.chat import VOCABULARY
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.errors import InputError, ScenarioError
from cachesim.prove.mlx_lm.families import toy_of
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Scenario, Step


def playable_families(scenario: Scenario) -> dict[str, str]:
    """The class of each model of a scenario; InputError if it cannot be run."""
    specs = {name: spec_of(network) for name, network in scenario.networks.items()}
    families = {name: family_of(spec).name for name, spec in specs.items()}
    toys = {name: toy_of({"family": family}, VOCABULARY) for name, family in families.items()}
    options = scenario.engine.options
    drafter = MlxOptions(draft_model=options.get("draft_model")).draft_spec(specs[""])
    if drafter is not None:
        specs["draft"] = drafter
        toys["draft"] = toy_of({"family": family_of(drafter).name}, VOCABULARY)
    hurdles = {
        "its toy model reads no images": bool(scenario.images),
        "none of its model classes has such layers": any(
            set(specs[name].layers) != set(toy.layers) for name, toy in toys.items()
        ),
        "bytes are those of another model": "prompt_cache_bytes" in options,
        "it depends on the real server's clock": any(
            step.do != "complete" or step.turns for step in scenario.step
        ),
    }
    why = next((why for why, stands in hurdles.items() if stands), None)
    if why is not None:
        raise ScenarioError(f"{scenario.name} is not run on the real server: {why}")
    return families


def fits(scenario: Scenario) -> bool:
    """True if it can be run there."""
    try:
        playable_families(scenario)
    except InputError:
        return False
    return True


def shows(_: Step) -> bool:
    """True: any answer can be compared with an uncached one."""
    return True
