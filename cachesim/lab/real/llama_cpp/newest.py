"""The newest wheel beside the newest release known here: as it, or the rules that explain it."""

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.words import counted
from cachesim.lab.real.fit.newest import Played, explain
from cachesim.lab.real.llama_cpp.calls import RealServerError
from cachesim.lab.real.llama_cpp.compare import SideBySide, Tally, title_of
from cachesim.lab.real.llama_cpp.differences import show_difference
from cachesim.lab.real.llama_cpp.fit.recordings import Recording, play_under
from cachesim.lab.real.llama_cpp.server import as_release, environment_for
from cachesim.lab.real.llama_cpp.trial import Trial, known_trials
from cachesim.lab.real.llama_cpp.wheels import newest_wheel, wheel_named
from cachesim.lab.real.playing import console, watched


def real_newest(
    wheel: str,
    *,
    release: str = "",
    workloads: int,
    seed: int,
) -> int:
    """Play workloads on the newest wheel, or on the one named, under a profile's rules: those of
    the newest one, unless another is named.

    0 if every request agrees, 1 if something is new, or if there is no wheel to be had. Where they
    do not agree, the rule fields are fitted that explain it.
    """
    release = as_release(release) if release else FAMILY.real()[-1]
    out, shown = console(), None
    unstarted, recorded = list[RealServerError](), list[Played[Trial]]()
    found = wheel_named(wheel) if wheel else newest_wheel()
    environment_for(release, found.version).ready()
    tally = Tally(title=title_of(str(found), seed))
    with SideBySide(release, version=found.version) as pair:
        for number in watched(range(workloads)):
            try:
                played = pair.play_random(seed=seed, number=number, presets=())
            except RealServerError as error:
                unstarted.append(error)
                continue
            tally.count(played)
            recorded.append(
                _recorded(Recording(workload=played.workload, outcomes=played.outcomes))
            )
            if played.difference is not None and shown is None:
                shown = pair.shrunk(played.difference)
    if unstarted:
        count = counted(len(unstarted), "workload")
        out.print(f"{found} is NOT as {release}: {unstarted[0]} ({count})", markup=False)
    if tally.counts:
        out.print(tally.table())
    requests, agreeing = tally.total("requests"), tally.total("agreeing")
    if shown is None:
        if not unstarted:
            out.print(f"{found} is as {release}: all {requests:,} requests agree")
        return int(bool(unstarted))
    out.print(f"{found} is NOT as {release}: {requests - agreeing:,} of {requests:,} requests")
    show_difference(out, shown, profile=release, version=found.version)
    explain(found.release, release, known_trials(), recorded)
    out.print(f"with more workloads: cachesim real llama.cpp --fit {found.version} --workloads 150")
    return 1


def _recorded(recording: Recording) -> Played[Trial]:
    steps = recording.workload.step
    return Played(
        kind=str(recording.workload.model.preset),
        requests=len(steps),
        size=sum(len(each.ids) for each in steps),
        check=lambda trial: play_under(recording, trial),
    )
