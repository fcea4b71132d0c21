"""Finds a small workload for each cause that has none yet, and writes it to docs/causes.

`python docs/find_causes.py [SECONDS]`; the page of causes plays what it finds there.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Final

from cachesim.engines import facts
from cachesim.engines.causes import Loss
from cachesim.engines.family import FAMILIES, Profile
from cachesim.errors import CachesimError
from cachesim.play.session import Session
from cachesim.scenario.files import to_toml
from cachesim.scenario.format import Scenario
from cachesim.testing.search import shrink, workloads
from cachesim.testing.workloads import Shape

FOLDER: Final = Path(__file__).parent / "causes"
MODELS: Final = ("hybrid", "dense", "swa", "recurrent", "hybrid-swa")
SHAPE: Final = Shape(max_steps=8, longest=60)


def losses_of(scenario: Scenario) -> Iterator[Loss]:
    """Every loss of a run on the one profile that a scenario lists."""
    profile = Profile.parse(f"{scenario.engine.name}@{scenario.engine.profiles[0]}")
    try:
        for record in Session(scenario, profile, arithmetic="ring", reads_state=False).run():
            for reply in (*([record.reply] if record.reply else []), *record.children):
                yield from reply.losses
    except CachesimError:
        return


def find(engine: str, wanted: set[str], seconds: float) -> Iterator[tuple[str, Scenario]]:
    """Workloads of an engine that show what is wanted, until time is up."""
    until = monotonic() + seconds
    for first in count(0, 8):
        for release in reversed(FAMILIES[engine].releases):
            for model in MODELS:
                profile = Profile.parse(f"{engine}@{release.name}")
                drawn = workloads(profile, model, seed=3, first=first, shape=SHAPE)
                for _, scenario in zip(range(8), drawn, strict=False):
                    for cause in {loss.rule for loss in losses_of(scenario)} & wanted:
                        wanted.discard(cause)
                        yield cause, scenario
                    if not wanted or monotonic() > until:
                        return


def shows(cause: str, scenario: Scenario) -> bool:
    """True if a run loses tokens to a cause."""
    return any(loss.rule == cause for loss in losses_of(scenario))


def main(seconds: float = 120.0) -> None:
    """Look for what is missing, engine by engine."""
    FOLDER.mkdir(exist_ok=True)
    for engine in facts.shipped():
        known = {path.stem for path in FOLDER.glob("*.toml")}
        wanted = {c.id for c in facts.causes_of(engine) if f"{engine}-{c.id}" not in known}
        for cause, scenario in find(engine, wanted, seconds):
            small = shrink(scenario, partial(shows, cause))
            name = f"{engine}-{cause}"
            told = replace(small, name=name, about=f"Shows the cause {cause}.")
            (FOLDER / f"{name}.toml").write_text(to_toml(told), encoding="utf-8")
        sys.stdout.write(f"{engine}: nothing shows {', '.join(sorted(wanted)) or 'nothing'}\n")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
