"""A server with other settings: tokens that are read against bytes that are held.

own settings -> each alone, larger and smaller -> the best ones together -> the Pareto front
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cachesim.engines import FAMILIES
from cachesim.errors import InputError
from cachesim.logs.settings import flag_of, matters
from cachesim.logs.sizes import context_bytes
from cachesim.logs.subjects import Life

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
    is_alone: bool = True  # one setting, with what has to change with it

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
    """The work of one process: every life of a server with some settings changed."""

    lives: tuple[Life, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    is_alone: bool = True


def tried(trial: Trial) -> Tried | None:
    """Play everything with some settings; None where the server refuses them."""
    outcomes, context = [], 0
    for life in trial.lives:
        options = {**life.options, **trial.changes}
        try:
            outcomes.append(life.subject.outcome(options))
        except InputError:
            return None
        context = max(context, context_bytes(life.subject.spec, options))
    return Tried(
        changes=trial.changes,
        processed=sum(each.processed for each in outcomes),
        peak_bytes=max(each.peak_bytes for each in outcomes),
        context_bytes=context,
        failed=sum(each.failed for each in outcomes),
        is_alone=trial.is_alone,
    )


def alone(lives: Sequence[Life]) -> list[Trial]:
    """The user's own settings, and each other value by itself."""
    subject, options = lives[0].subject, lives[0].options
    trials = [Trial(tuple(lives))]
    family = FAMILIES[subject.engine]
    for name, values in family.swept.items():
        if not matters(family, subject.release, subject.spec, name):
            continue
        own = options.get(name, family.default(family.option(name), subject.release))
        trials += [
            Trial(tuple(lives), _change(options, name, value)) for value in values if value != own
        ]
    multiplied = {name: options.get(name, 0) * n for name, n in family.swept_factors.items()}
    trials += [Trial(tuple(lives), {name: value}) for name, value in multiplied.items() if value]
    return trials


def _change(options: Mapping[str, Any], name: str, value: object) -> dict[str, Any]:
    """A changed setting; slots that share no cells take their part of the context with them."""
    changes = {name: value}
    context, slots = options.get("ctx_size", 0), options.get("parallel", 1)
    if name == "parallel" and isinstance(value, int) and not options.get("kv_unified") and context:
        changes["ctx_size"] = context // max(1, slots) * value
    return changes


def together(first: Sequence[Tried], lives: Sequence[Life]) -> list[Trial]:
    """The settings that helped, in pairs and all at once."""
    own = first[0]
    best: dict[str, Tried] = {}
    for each in first[1:]:
        name = next(iter(each.changes))
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
    return [Trial(tuple(lives), each, is_alone=False) for each in pairs]


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


def summary(found: Sequence[Tried], life: Life) -> dict[str, Any]:
    """A sweep as JSON has it, with the command line of the best settings."""
    best = recommended(found)
    return {
        "own": found[0].as_dict(),
        "recommended": best.as_dict(),
        "command": command_line(life.subject.engine, life.options, best.changes),
        "front": [each.as_dict() for each in front(found)],
        "tried": [each.as_dict() for each in found],
    }
