"""The newest wheel beside the newest release known here: as it, or what is new."""

from collections.abc import Callable

from rich.table import Table

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.real.llama_cpp.calls import RealServerError
from cachesim.real.llama_cpp.compare import SideBySide, Tally
from cachesim.real.llama_cpp.differences import show_difference
from cachesim.real.llama_cpp.server import environment_for
from cachesim.real.llama_cpp.wheels import newest_wheel, wheel_named
from cachesim.real.playing import console, watched


def real_newest(
    wheel: str, *, workloads: int, seed: int, table: Callable[[str, int, Tally], Table]
) -> int:
    """Play workloads on the newest wheel, or on the one named, under the newest profile's rules.

    0 if every request agrees, 1 if something is new, or if there is no wheel to be had.
    """
    release = FAMILY.real()[-1]
    out, tally, shown = console(), Tally(), None
    try:
        found = wheel_named(wheel) if wheel else newest_wheel()
        environment_for(release, found.version).ready()
        with SideBySide(release, version=found.version) as pair:
            for number in watched(range(workloads)):
                played = pair.play_random(seed=seed, number=number, presets=())
                tally.count(played)
                if played.difference is not None and shown is None:
                    shown = pair.shrunk(played.difference)
    except RealServerError as error:
        out.print(f"{found} is NOT as {release}: {error}")
        return 1
    out.print(table(str(found), seed, tally))
    requests, agreeing = tally.requests.total(), tally.agreeing.total()
    if shown is None:
        out.print(f"{found} is as {release}: all {requests:,} requests agree")
        return 0
    out.print(f"{found} is NOT as {release}: {requests - agreeing:,} of {requests:,} requests")
    show_difference(out, shown, profile=release, version=found.version)
    out.print(f"to find its rules: cachesim real llama.cpp --fit {found.version} --workloads 150")
    return 1
