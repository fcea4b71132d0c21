"""What the workbench adds where it is set up: `conformance`, beside this package in a checkout.

It compares cachesim with the engines' own code on random workloads. A wheel has none of it, so what
needs it says in one sentence where it is.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Final

from cachesim.errors import OptionError

COMMANDS: Final = "cachesim.conformance"
"""Entry points by engine: the function behind `cachesim real ENGINE`, with all its options."""

PROVERS: Final = "cachesim.conformance.provers"
"""Entry points by engine: the proof of a finding by a release's scheduler and model runner."""

SERVERS: Final = "cachesim.conformance.servers"
"""Entry points by engine: what starts its real servers for `cachesim conform ENGINE`."""


def added(group: str) -> dict[str, EntryPoint]:
    """The workbench's entry points of a group; none in an installed package."""
    return {point.name: point for point in entry_points(group=group)}


def missing(what: str) -> OptionError:
    """The error of a command, or of an option, that the installed package cannot run."""
    return OptionError(
        f"{what}: comparisons with an engine's own code need a checkout of cachesim, where "
        "`make run` sets them up"
    )
