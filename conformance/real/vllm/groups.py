"""Groups of requests on a scheduler of vLLM, the simulated or the real one; workers import it too.

Requests of a group are added in order, together or after some turns, then the scheduler runs until
all are done; tokens are forced, and drafts are the true continuation.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from cachesim.prove.rows import read_row
from cachesim.prove.worker_side import Real

Name = Any  # int or str
Wanted = Mapping[str, Any]
Entry = dict[str, Any]
Spans = dict[Name, tuple[int, int]]
"""Start and end of each request's computed tokens in a step, by name."""

WRONG_DRAFT: Final = 9_999_999
"""Proposed where the true continuation ends."""

MOST_STEPS: Final = 20_000


class Loads:
    """Transfers of a store under way; a workload says how many steps each takes.

    | step    | step + 1 | ...  `loads` 2: received at the end of the second step
      begins    received          `sends` as many steps after a request's end
    """

    def __init__(self) -> None:
        self.ahead = 0  # steps in flight, whose outputs come before that of the next one
        self.loading: dict[Name, int] = {}  # steps left
        self.sending: dict[Name, int] = {}
        self.failed: set[Name] = set()  # failed by request
        self.invalid: dict[Name, tuple[int, int]] = {}  # a block that fails, and steps left
        self.asked: set[Name] = set()  # whose one read of a prefill server is over or under way
        self._fails: set[Name] = set()

    def begin(
        self, name: Name, wanted: Wanted, tables: Sequence[Sequence[int]], span: range, kind: str
    ) -> None:
        """Begin the load of a span of the first group's table, whose kind is given.

        Only a group that keeps every block gets the failed one, and none from a prefill server.
        """
        reads = "leaves" in wanted
        if reads:
            self.asked.add(name)
        if "loads" in wanted:
            self.loading[name] = wanted["loads"] + self.ahead
        if "fails" not in wanted or name in self._fails:
            return
        self._fails.add(name)  # the store has less the next time
        if len(tables) > 1 or kind != "full" or reads:
            self.failed.add(name)
        else:
            block = tables[0][span[wanted["fails"] % len(span)]]
            self.invalid[name] = block, self.loading.get(name, 1 + self.ahead)

    def next(self) -> tuple[list[Name], list[Name], list[Name], set[int]]:
        """Received, sent and failed requests, and invalid blocks, at the end of a step."""
        received, sent = self._ended(self.loading), self._ended(self.sending)
        failed = [each for each in received if each in self.failed]
        self.failed -= set(failed)
        self.invalid = {name: (block, left - 1) for name, (block, left) in self.invalid.items()}
        now = {block for block, left in self.invalid.values() if left <= 0}
        self.invalid = {name: each for name, each in self.invalid.items() if each[1] > 0}
        return received, sent, failed, now

    @staticmethod
    def _ended(left: dict[Name, int]) -> list[Name]:
        for name in left:
            left[name] -= 1
        ended = [name for name, steps in left.items() if steps <= 0]
        for name in ended:
            del left[name]
        return ended


class HostCopies:
    """Copies to and from the host: the part of a worker that reports when they have ended.

    A load begins with its step, a store with the next one; each takes `steps`. One that is waited
    for ends at once.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.later: list[int] = []  # stores that the next step begins
        self.under_way: dict[int, int] = {}  # steps left
        self.loads: dict[int, Name] = {}

    @property
    def busy(self) -> bool:
        """True while a copy has not ended."""
        return bool(self.later or self.under_way)

    def begin(self, loads: Mapping[int, Name], stores: Sequence[int], flushed: set[int]) -> None:
        """Begin what a step brings."""
        now = [store for store in stores if store in flushed]
        self.under_way |= dict.fromkeys((*self.later, *now, *loads), self.steps)
        self.under_way |= {each: 1 for each in self.under_way if each in flushed}
        self.loads |= loads
        self.later = [store for store in stores if store not in flushed]

    def next(self) -> tuple[list[int], list[Name]]:
        """The copies that end with this step, and the requests whose loads do."""
        for each in self.under_way:
            self.under_way[each] -= 1
        ended = [each for each, left in self.under_way.items() if not left]
        for each in ended:
            del self.under_way[each]
        return ended, [self.loads.pop(each) for each in ended if each in self.loads]


class Groups:
    """A fresh scheduler, and the results of one group of requests after another."""

    NAME: ClassVar[str]  # field of a request; so are the other three
    PROMPT: ClassVar[str]
    OUTPUT: ClassVar[str]
    PREEMPTIONS: ClassVar[str]

    scheduler: Real
    reset: Callable[[], bool]  # empties the prefix cache; false where blocks are in use
    request: Callable[[int, Wanted], Real]  # made, not yet added
    abort: Callable[[Real], None]
    learn: Callable[[Real], None]  # labels the block hashes of a request
    busy: Callable[[], bool]
    schedule: Callable[[Mapping[Name, Real]], tuple[Real, Spans]]
    drafted: Callable[[Real, Name], int]  # drafts that a step verifies for a request
    proposes: Callable[[Real], int]  # drafts of each request after a step
    hand_over: Callable[[Real, Mapping[Name, list[int]]], None]  # the tokens of a step
    propose: Callable[[Mapping[Name, Real], Mapping[Name, list[int]]], None]
    pool: Callable[[], Entry]  # cached blocks and the free queue
    host: Callable[[], Entry]  # chunks on the host, and those evicted from it
    begin_copies: Callable[[Real], None]  # those to and from the host that a step brings

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.drafts: int = config.get("drafts", 0)
        self.most_under_way = 2 if config.get("overlaps") else 1
        self.under_way: list[tuple[Real, Spans]] = []  # scheduled, and not yet come back
        self.loads = Loads()
        offload = config.get("offload")
        self.copies = HostCopies(offload["steps"]) if offload else None
        self.jobs: list[list[Any]] = []  # copies of a group of requests
        self.host_evicted: list[list[int]] = []
        self.queries = Counter[Name]()  # to the store, by request
        self.evicted: list[list[int]] = []
        self.results: dict[Name, Entry] = {}
        self.wanted: dict[Name, Wanted] = {}
        self.count = 0

    def play(self, group: Sequence[Wanted]) -> Entry:
        """Results of requests that arrive together, run until all are done."""
        if "reset" in group[0]:
            return {"reset": self.reset()}
        self.evicted, self.results, self.wanted = [], {}, {}
        self.jobs, self.host_evicted = [], []
        requests: dict[Name, Real] = {}
        problem = self.until_done(requests, group)
        if problem:
            return {"error": problem}
        self.scheduler.schedule()  # flushes what the last step left
        entries = [self._entry(name, request) for name, request in requests.items()]
        played = {"requests": entries, "evicted": self.evicted} | self.pool()
        return played | ({"jobs": self.jobs, **self.host()} if self.copies else {})

    def until_done(self, requests: dict[Name, Real], group: Sequence[Wanted]) -> str:
        """Run a group to its end; return the reason if it has none."""
        stuck = 0
        for turn in range(MOST_STEPS):
            while len(requests) < len(group) and group[len(requests)].get("after", 0) <= turn:
                wanted = group[len(requests)]
                request = self.request(self.count, wanted)
                self.count += 1
                name = getattr(request, self.NAME)
                self.results[name] = {"lookups": [], "chunks": [], "turn": 0}
                self.wanted[name], requests[name] = wanted, request
                self.learn(request)
                self.scheduler.add_request(request)
            for name, request in requests.items():
                if self.wanted[name].get("abort") == turn:
                    self.abort(request)
            copies = self.copies
            moving = bool(self.loads.loading or self.loads.sending or (copies and copies.busy))
            busy = self.busy() or moving
            if not busy and not self.under_way:
                if len(requests) == len(group):
                    return ""
                continue
            if busy:
                self.loads.ahead = len(self.under_way)
                step, spans = self.schedule(requests)
                stuck = 0 if spans or self.under_way or moving else stuck + 1
                if stuck > 3:
                    return "stuck"
                for name, span in spans.items():
                    self.results[name]["chunks"].append([*span])
                if spans or copies or self.loads.loading or self.loads.sending:
                    self.under_way.append((step, spans))
                    executed = spans or not copies  # an empty step's output is taken at once
                    if executed and len(self.under_way) < self.most_under_way:
                        continue
            if self.under_way:
                self._take_results(*self.under_way.pop(0), requests)
        return "too many steps"

    def stored(self, name: Name) -> int:
        """End of the tokens that the store has at the last query of a request.

        A workload has one number, or one for each query.
        """
        found: int | Sequence[int] = self.wanted[name].get("stored", 0)
        if isinstance(found, int):
            return found
        return found[min(self.queries[name], len(found)) - 1]

    def _take_results(self, step: Real, spans: Spans, requests: Mapping[Name, Real]) -> None:
        """Take the tokens of a finished step, and the next drafts."""
        if self.copies is not None:
            self.begin_copies(step)
        sampled, proposals = dict[Name, list[int]](), dict[Name, list[int]]()
        for name, (_, end) in spans.items():
            sampled[name] = []
            if end < requests[name].num_tokens:
                continue
            wanted, done, accept = self.wanted[name], getattr(requests[name], self.OUTPUT), 0
            reply, drafted = read_row(wanted.get("reply", "")), self.drafted(step, name)
            if drafted:
                accepts, turn = wanted.get("accept", []), self.results[name]["turn"]
                accept = min(accepts[turn % len(accepts)] if accepts else 0, drafted)
                self.results[name]["turn"] += 1
            sampled[name] = reply[done : done + accept + 1]
            if sampled[name]:
                done += len(sampled[name])
                counts = wanted.get("propose") or [self.drafts]
                proposal = reply[done : done + self.drafts] + [WRONG_DRAFT] * self.drafts
                proposals[name] = proposal[: counts[done % len(counts)]][: self.proposes(step)]
        self.hand_over(step, sampled)
        if self.drafts and self.most_under_way == 1:
            self.propose(requests, proposals)
        for request in requests.values():
            self.learn(request)

    def _entry(self, name: Name, request: Real) -> Entry:
        chunks, prompt = self.results[name]["chunks"], getattr(request, self.PROMPT)
        return {
            "cached": chunks[0][0] if chunks else None,
            "lookups": self.results[name]["lookups"],
            "chunks": [chunk for chunk in chunks if chunk[0] < prompt or chunk[1] - chunk[0] > 1],
            "preempted": getattr(request, self.PREEMPTIONS),
        }
