"""A server with other settings: tokens that are read against bytes that are held.

own settings -> each alone, larger and smaller -> the best ones together -> the Pareto front
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cachesim.engines import FAMILIES
from cachesim.errors import InputError
from cachesim.logs.settings import flag_of, matters
from cachesim.logs.subjects import Subject
from cachesim.model.spec import ModelSpec

NEARLY: Final = 1.01
"""A setting within this of the fewest tokens is as good, if it holds less."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One server: what differs from the user's, and what came of it."""

    changes: Mapping[str, Any]
    processed: int
    peak_bytes: int
    context_bytes: int
    failed: int

    @property
    def held(self) -> int:
        """Bytes in all: parked prompts and checkpoints, and the context itself."""
        return self.peak_bytes + self.context_bytes

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "changes": dict(self.changes),
            "processed": self.processed,
            "peak_bytes": self.peak_bytes,
            "context_bytes": self.context_bytes,
            "failed": self.failed,
        }


@dataclass(frozen=True, slots=True)
class Trial:
    """What one process is given to do."""

    subject: Subject
    options: Mapping[str, Any]
    changes: Mapping[str, Any] = field(default_factory=dict)


def tried(trial: Trial) -> Tried | None:
    """Play everything with some settings; None where the server refuses them."""
    options = {**trial.options, **trial.changes}
    context = options.get("ctx_size", 0)  # 0: its memory grows with what it holds
    slots = trial.options.get("parallel", 1)
    if "parallel" in trial.changes and not options.get("kv_unified"):
        context = context // max(1, slots) * options["parallel"]
        options["ctx_size"] = context
    try:
        came = trial.subject.outcome(options)
    except InputError:
        return None
    full = bool(options.get("swa_full"))
    return Tried(
        changes=trial.changes,
        processed=came.processed,
        peak_bytes=came.peak_bytes,
        context_bytes=context * _bytes_per_token(trial.subject.spec, swa_full=full),
        failed=came.failed,
    )


def _bytes_per_token(spec: ModelSpec, *, swa_full: bool) -> int:
    """Bytes of one token's place in the context; a window's own cells are few."""
    kinds = {"attention", "window"} if swa_full else {"attention"}
    return sum(
        spec.key_bytes(layer) + spec.value_bytes(layer)
        for layer, kind in enumerate(spec.layers)
        if kind in kinds
    )


def alone(subject: Subject, options: Mapping[str, Any]) -> list[Trial]:
    """The user's own settings, and each other value by itself."""
    trials = [Trial(subject, options)]
    family = FAMILIES[subject.engine]
    for name, values in family.swept.items():
        if not matters(family, subject.release, subject.spec, name):
            continue
        own = options.get(name, family.default(family.option(name), subject.release))
        trials += [Trial(subject, options, {name: value}) for value in values if value != own]
    return trials


def together(subject: Subject, options: Mapping[str, Any], first: Sequence[Tried]) -> list[Trial]:
    """The settings that helped, in pairs and all at once."""
    own = first[0]
    best: dict[str, Tried] = {}
    for each in first[1:]:
        (name,) = each.changes
        better = each.processed < own.processed and each.failed <= own.failed
        if better and (name not in best or each.processed < best[name].processed):
            best[name] = each
    changes = [dict(each.changes) for each in best.values()]
    pairs = [one | other for i, one in enumerate(changes) for other in changes[i + 1 :]]
    whole: dict[str, Any] = {}
    for change in changes:
        whole |= change
    if len(changes) > 2:
        pairs.append(whole)
    return [Trial(subject, options, each) for each in pairs]


def front(found: Iterable[Tried]) -> list[Tried]:
    """Those that nothing beats on both counts, fewest tokens first."""
    kept: list[Tried] = []
    for each in sorted(found, key=lambda one: (one.failed, one.processed, one.held)):
        if not kept or each.held < kept[-1].held:
            kept.append(each)
    return kept


def recommended(found: Sequence[Tried]) -> Tried:
    """The one that holds least among those that read nearly as few tokens as the best."""
    best = min(found, key=lambda each: (each.failed, each.processed))
    good = [
        each
        for each in found
        if each.failed == best.failed and each.processed <= best.processed * NEARLY
    ]
    return min(good, key=lambda each: (each.held, len(each.changes)))


def command_line(engine: str, options: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """How to start the server with these settings."""
    family, given = FAMILIES[engine], {**options, **changes}
    flags = (flag_of(family, name, value) for name, value in given.items())
    return " ".join([family.program, *filter(None, flags)])
