"""A plain state machine of Hypothesis beside the kit, on the planted bugs of `tests/testing`.

python -m benchmarks.state_machine        which of the bugs it finds in 300 examples
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cachesim.testing import Request, Server
from cachesim.testing.contents import Rows, needed, rows_of
from cachesim.units import as_tokens
from tests.testing import planted_caches, planted_pools

BLOCK = 8


def same(holds: bool) -> None:  # noqa: FBT001 - a condition, not a switch
    """Fail unless it holds."""
    if not holds:
        raise AssertionError


class Machine(RuleBasedStateMachine):
    """Stores, asks, evicts and clears; what is loaded is compared with rows of an uncached run."""

    make: Any
    preset = "dense"

    def __init__(self) -> None:
        super().__init__()
        self.server = Server(preset=self.preset)
        self.folder = tempfile.TemporaryDirectory()
        self.cache = type(self).make(self.server, Path(self.folder.name))
        self.stored: list[Request] = []

    def teardown(self) -> None:
        self.folder.cleanup()

    def rows(self, request: Request) -> Rows:
        return [layer.copy() for layer in rows_of(self.server, request)]

    @rule(
        blocks=st.lists(st.integers(0, 2), min_size=1, max_size=3),
        tail=st.integers(0, 3),
        who=st.sampled_from(["", "a"]),
        salt=st.sampled_from(["", "s"]),
    )
    def store(self, blocks: list[int], tail: int, who: str, salt: str) -> None:
        tokens = as_tokens([block for block in blocks for _ in range(BLOCK)] + [1] * tail)
        request = Request(tokens=tokens, adapter=who, salt=salt)
        self.cache.store(request, self.rows(request))
        self.stored.append(request)

    @precondition(lambda self: self.stored)
    @rule(
        at=st.integers(0, 5),
        more=st.lists(st.integers(0, 2), max_size=BLOCK),
        who=st.sampled_from([None, "", "a"]),
    )
    def ask(self, at: int, more: list[int], who: str | None) -> None:
        of = self.stored[at % len(self.stored)]
        name = of.adapter if who is None else who
        request = Request(tokens=of.tokens + as_tokens(more), adapter=name, salt=of.salt)
        count = self.cache.lookup(request)
        same(0 <= count <= len(request.tokens))
        if not count:
            return
        found, right = self.cache.load(request, count), rows_of(self.server, request.first(count))
        for got, cold, shape in zip(found, right, self.server.shapes, strict=True):
            least = needed(self.server, shape, count)
            same(got[len(got) - least :].tobytes() == cold[len(cold) - least :].tobytes())

    @precondition(lambda self: self.stored)
    @rule(at=st.integers(0, 5))
    def evict(self, at: int) -> None:
        if hasattr(self.cache, "evict"):
            self.cache.evict(self.stored[at % len(self.stored)])

    @rule()
    def clear(self) -> None:
        if hasattr(self.cache, "clear"):
            self.cache.clear()
            same(not any(self.cache.lookup(request) for request in self.stored))


def finds(make: type, preset: str) -> bool:
    """Whether 300 examples of 15 calls break an assertion, or make the cache fail."""
    machine = type("Of", (Machine,), {"make": make, "preset": preset})
    told = settings(
        max_examples=300,
        stateful_step_count=15,
        database=None,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(machine, settings=told)
    except Exception:  # noqa: BLE001 - whatever stops it is a find
        return True
    return False


if __name__ == "__main__":
    for bug, (_, told) in (planted_caches.PLANTED | planted_pools.PLANTED).items():
        start = time.process_time()
        found = finds(bug, (told.get("presets") or ("dense",))[0])
        seconds = time.process_time() - start
        print(f"{bug.__name__},{'found' if found else 'missed'},{seconds:.1f}", flush=True)
