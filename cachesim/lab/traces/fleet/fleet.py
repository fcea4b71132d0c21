"""A fleet as users write it: replicas, a router with its rules, changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from cachesim.lab.traces.fleet.cache_aware import CacheAware
from cachesim.lab.traces.fleet.changes import Change, changes_of
from cachesim.lab.traces.fleet.dynamo import Dynamo
from cachesim.lab.traces.fleet.gateway import Gateway
from cachesim.lab.traces.fleet.others import Other, others_of
from cachesim.lab.traces.fleet.plain import (
    BoundedHash,
    LeastLoaded,
    Oracle,
    Random,
    RoundRobin,
    Sticky,
)
from cachesim.lab.traces.fleet.router import Router, RouterError

ROUTERS: Final[Mapping[str, type[Router]]] = {
    each.name: each
    for each in (
        RoundRobin,
        Random,
        LeastLoaded,
        Sticky,
        BoundedHash,
        CacheAware,
        Dynamo,
        Gateway,
        Oracle,
    )
}
"""All routers, by name."""

MOST_REPLICAS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas with a router."""

    replicas: int
    router: Router
    changes: tuple[Change, ...] = ()
    others: tuple[Other, ...] = ()  # replicas that differ
    parts: int = 1  # processes among which the replicas are divided
    part: int | None = None  # one of them; all if None

    @classmethod
    def of(
        cls,
        replicas: int,
        router: str,
        changes: Sequence[str] = (),
        others: Sequence[str] = (),
        parts: int = 1,
    ) -> "Fleet":
        """A fleet with checked parts."""
        if isinstance(replicas, bool) or not 1 <= replicas <= MOST_REPLICAS:
            msg = f"replicas is {replicas}; write a whole number from 1 to {MOST_REPLICAS:,}"
            raise RouterError(msg)
        if isinstance(parts, bool) or not 1 <= parts <= replicas:
            msg = f"parts is {parts}; write a whole number from 1 to that of the replicas"
            raise RouterError(msg)
        chosen = router_of(router)
        if parts > 1 and not chosen.apart:
            msg = f"router {router} looks into the replicas, which therefore stay together: parts 1"
            raise RouterError(msg)
        return cls(
            replicas=replicas,
            router=chosen,
            changes=changes_of(changes, replicas),
            others=others_of(others, replicas),
            parts=parts,
        )

    def mine(self, number: int) -> bool:
        """True if a replica is simulated in this part."""
        return self.part is None or number % self.parts == self.part

    def other(self, number: int) -> Other | None:
        """What is different about a replica."""
        return next((each for each in self.others if number in each.numbers), None)

    def as_dict(self) -> dict[str, Any]:
        """The fleet as plain data."""
        return {
            "replicas": self.replicas,
            "router": self.router.as_text(),
            "follows": self.router.follows,
            "changes": [each.as_text() for each in self.changes],
            "others": [each.text for each in self.others],
            "parts": self.parts,
        }


def router_of(text: str) -> Router:
    """Read a router as users write it: `cache-aware,cache_threshold=0.5`."""
    name, *rules = (part.strip() for part in text.split(","))
    if name not in ROUTERS:
        msg = f"there is no router {name!r}; there are {', '.join(ROUTERS)}"
        raise RouterError(msg)
    kind = ROUTERS[name]
    defaults = {each.name: each.default for each in fields(kind)}
    given = {}
    for rule in rules:
        key, found, value = rule.partition("=")
        if key not in defaults or not found:
            has = f"it has {', '.join(defaults)}" if defaults else "it has none"
            msg = f"router {name} has no rule {rule!r}; {has}; write one as NAME=VALUE"
            raise RouterError(msg)
        given[key] = _value(name, key, value, type(defaults[key]))
    router = kind(**given)
    router.check()
    return router


def _value(name: str, key: str, text: str, kind: type) -> object:
    if kind is str:
        return text
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        msg = f"router {name}: {key} is {text!r}; write {what}"
        raise RouterError(msg) from None
