"""Groups of requests on a scheduler of SGLang, the simulated or the real one.

Requests of a group are added in order, together or after some turns, then the scheduler runs until
all are done; tokens are forced.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Final

from cachesim.lab.real.prompts import read_row

Real = Any  # requests, schedulers and batches of the simulator or of a release
Name = Any  # int or str
Wanted = Mapping[str, Any]
Entry = dict[str, Any]
Node = tuple[Any, ...]
"""The keys from the root to the end of a node, the node's length, and its flags."""

MOST_STEPS: Final = 20_000
MOST_IDLE: Final = 40
IDLE: Final = 10
"""Passes of a server that idles before it is flushed."""


class Groups:
    """A fresh scheduler, and the results of one group of requests after another."""

    NAME: ClassVar[str]  # field of a request

    start: Callable[[], None]  # a fresh scheduler
    add: Callable[[Sequence[int], Wanted], Real]  # makes a request, and queues it
    key_of: Callable[[list[int]], list[int]]  # a request's whole text, as the tree keys it
    abort: Callable[[Real], None]
    finished: Callable[[Real], bool]
    plan: Callable[[], Real]  # the next batch, or None
    rest: Callable[[], None]  # after a plan without a batch
    waits: Callable[[], bool]  # true where the scheduler holds further requests
    pieces: Callable[[Real], Iterable[tuple[Real, int, int, Any]]]
    """Requests of a batch that compute a part of their prompt: its start, its end, the branch."""

    generated: Callable[[Real], int]
    take: Callable[[Real, list[int]], object]  # the tokens of a batch
    count_retractions: Callable[[Real, Entry], None]
    nodes: Callable[[], list[Node]]
    leaks: Callable[[], bool]
    free: Callable[[], dict[str, int]]

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.keys: list[list[int]] = []
        self.evicted: list[list[Any]] = []
        self.results: dict[Name, Entry] = {}
        self.wanted: dict[Name, Wanted] = {}
        self.start()

    def play(self, group: Sequence[Wanted]) -> Entry:
        """Results of requests that arrive together or one after another, run until all are done."""
        if "reset" in group[0]:
            for _ in range(IDLE if self.config.get("idles") else 0):
                self.plan()
            self.start()
            return {"reset": True}
        self.evicted, self.results, self.wanted = [], {}, {}
        requests: dict[Name, Real] = {}
        idle = 0
        for turn in range(MOST_STEPS):
            self._arrive(requests, group, turn)
            batch = self.plan()
            for name, request in requests.items():
                self.count_retractions(request, self.results[name])
            if batch is not None:
                idle = 0
                self.run(batch)
                continue
            self.rest()
            coming = len(requests) < len(group)
            ended = all(self.ended(name, request) for name, request in requests.items())
            if ended and not coming and not self.waits():
                return self.result()
            idle += int(not coming)
            if idle > MOST_IDLE:
                return {"error": "stuck"}
        return {"error": "too many steps"}

    def _arrive(self, requests: dict[Name, Real], group: Sequence[Wanted], turn: int) -> None:
        """Add requests that arrive in this turn; abort those whose clients disconnect."""
        while len(requests) < len(group) and group[len(requests)].get("arrives", 0) <= turn:
            wanted = group[len(requests)]
            prompt = read_row(wanted["prompt"])
            self.keys.append(self.key_of(prompt + read_row(wanted.get("reply", ""))))
            request = self.add(prompt, wanted)
            name = getattr(request, self.NAME)
            self.results[name] = {"cached": None, "chunks": [], "branch": None, "retracted": 0}
            self.wanted[name], requests[name] = wanted, request
        for name, request in requests.items():
            if self.wanted[name].get("aborted") == turn and not self.finished(request):
                self.results[name]["aborted"] = True
                self.abort(request)

    def ended(self, _name: Name, request: Real) -> bool:
        """True where a request needs no further batch."""
        return self.finished(request)

    def run(self, batch: Real) -> None:
        """Note what a batch computes, and give it the tokens that its requests name."""
        for request, start, end, branch in self.pieces(batch):
            entry = self.results[getattr(request, self.NAME)]
            entry["chunks"].append([start, end])
            if entry["cached"] is None:
                entry["cached"], entry["branch"] = start, branch
        tokens = []
        for request in batch.reqs:
            reply = read_row(self.wanted[getattr(request, self.NAME)].get("reply", ""))
            done = self.generated(request)
            tokens.append(reply[done] if done < len(reply) else 1)
        self.take(batch, tokens)

    def result(self) -> Entry:
        if self.leaks():
            return {"error": "pool memory leak detected"}
        return {
            "requests": list(self.results.values()),
            "evicted": self.evicted,
            "tree": [[*self._label(path), *rest] for path, *rest in self.nodes()],
            "free": self.free(),
        }

    def note_evicted(self, before: Sequence[Node]) -> None:
        """Note the nodes that are gone or have other flags than before."""
        now = {path: rest for path, *rest in self.nodes()}
        for path, *rest in before:
            if path not in now:
                self.evicted.append([*self._label(path), *rest])
            elif now[path] != rest:
                self.evicted.append([*self._label(path), *rest, "kept without it"])

    def _label(self, path: Sequence[Any]) -> list[int]:
        """The first request that begins with the keys of a path, and their number."""
        keys = list(path)
        pairs = bool(keys) and isinstance(keys[0], tuple)
        for number, known in enumerate(self.keys):
            if (list(pairwise(known)) if pairs else known)[: len(keys)] == keys:
                return [number, len(keys)]
        return [-1, len(keys)]
