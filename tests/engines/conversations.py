"""Random conversations that grow, branch, are sent again and share steps, on any server."""

import random
from collections.abc import Iterator, Sequence

from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.errors import UpstreamAbort
from cachesim.model.arithmetic import Network
from cachesim.units import Tokens, as_tokens
from cachesim.verify.explain import adds_up
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import judge


class Conversations:
    """One server, and the requests that it is sent; who derives says which."""

    rng: random.Random
    network: Network
    engine: Engine
    together: Sequence[int]  # how many requests come at once
    longest: tuple[int, int, int]  # of a new prompt, of what is added to one, of any

    def __init__(self) -> None:
        self.oracle = Oracle(self.network)
        self.known: list[tuple[Tokens, Tokens]] = []

    def rounds(self) -> int:
        raise NotImplementedError

    def request(self) -> Request:
        raise NotImplementedError

    def between(self) -> None:
        """Actions after the answers to a group."""

    def fresh(self, count: int) -> Tokens:
        return as_tokens([self.rng.randrange(265, 512) for _ in range(count)])

    def prompt(self, unit: int) -> Tokens:
        """A new one, or one that was sent before: as it was, cut, or with something added."""
        rng, (new, added, most) = self.rng, self.longest
        kind = rng.random()
        if not self.known or kind > 0.8:
            return self.fresh(rng.randint(1, new))
        prompt, reply = rng.choice(self.known)
        if kind < 0.25:
            return prompt
        whole = prompt + reply
        cut = rng.randint(1, len(whole))
        if rng.random() < 0.3:
            cut = cut // unit * unit or cut
        return (whole[:cut] + self.fresh(rng.randint(0, added)))[:most]

    def play(self) -> Iterator[Reply]:
        """Groups of requests until the workload, or the server, comes to its end."""
        for _ in range(self.rounds()):
            group = [
                self.engine.submit(self.request()) for _ in range(self.rng.choice(self.together))
            ]
            try:
                gone = self._abort(group) if self.rng.random() < 0.2 else None
                self.engine.run()
            except UpstreamAbort:
                return
            self.engine.check_integrity()
            self.between()
            for ticket in group:
                reply = self.engine.reply(ticket)
                if ticket != gone and reply is not None and reply.error is None:
                    self.known.append((reply.prompt, reply.generated))
                    yield reply

    def _abort(self, group: list[Ticket]) -> Ticket:
        for _ in range(self.rng.randint(0, 3)):
            self.engine.step()
        victim = self.rng.choice(group)
        self.engine.cancel(victim)
        return victim


def judged(workload: Conversations) -> Iterator[tuple[Reply, bool]]:
    """Every reply, and whether it is the cold one; every account must add up."""
    for reply in workload.play():
        adds_up(reply)
        verdict = judge(reply, workload.oracle)
        yield reply, verdict is None or verdict.answer == "same"


def wrong(workload: Conversations) -> list[Reply]:
    """The replies that are not the cold ones."""
    return [reply for reply, same in judged(workload) if not same]
