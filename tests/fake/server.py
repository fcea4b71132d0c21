"""A server small enough to foresee: one slot, longest common prefix, replies as asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cachesim.engines.base import ByteStore, Engine, Reply, Request, Ticket
from cachesim.engines.causes import Ledger
from cachesim.engines.events import Event, EventLog
from cachesim.errors import UpstreamAbort
from cachesim.model.build import arithmetic_of
from cachesim.units import Array, Count, Token, Tokens
from cachesim.verify.oracle import Oracle
from tests.fake import vocabulary
from tests.fake.family import FakeOptions, FakeRules


class FakeServer(Engine):
    """Keeps the last conversation. A prompt of 77 tokens ends it.

    `r2` forgets half of what is equal; `r3` answers as if a prompt began with its second token.
    """

    def _open(self, rules: FakeRules, options: FakeOptions, store: ByteStore | None) -> None:
        self.rules, self.options, self.store = rules, options, store
        self.known: Tokens = ()
        self.queue: list[tuple[Ticket, Request]] = []
        self.answers: dict[Ticket, Reply] = {}
        self.log = EventLog()
        self.given = 0
        self.computes = arithmetic_of(self.network) != "counts"
        self.oracle = Oracle(self.network)

    @property
    def events(self) -> Sequence[Event]:
        return self.log

    def submit(self, request: Request) -> Ticket:
        ticket = Ticket(self.given)
        self.given += 1
        self.queue.append((ticket, request))
        return ticket

    def step(self) -> bool:
        if not self.queue:
            return False
        ticket, request = self.queue.pop(0)
        self.answers[ticket] = self._serve(ticket, request)
        return True

    def _serve(self, ticket: Ticket, request: Request) -> Reply:
        prompt = request.prompt
        if len(prompt) == 77:
            where, why = "llama_decode", "unlucky prompt"
            raise UpstreamAbort(where, why)
        if len(prompt) > 4000:
            return Reply(
                prompt=prompt,
                generated=(),
                logits=np.zeros((0, 512)),
                cached=None,
                processed=None,
                error="exceed_context_size_error",
                message="too long",
            )
        equal = 0
        while equal < min(len(self.known), len(prompt)) and self.known[equal] == prompt[equal]:
            equal += 1
        ledger = Ledger(Count(equal), "slot 0")
        if equal == len(prompt):
            ledger.apply(vocabulary.LAST_TOKEN, equal - 1, prompt_tokens=equal)
        if self.rules.forgets:
            ledger.apply(vocabulary.FORGETFUL, ledger.usable // 2, held=len(self.known))
        generated, logits = self._answer(request)
        self.known = (*prompt, *generated[:-1])
        self.log.append(vocabulary.RequestServed(slot=0, task=int(ticket), cached=ledger.usable))
        return Reply(
            prompt=prompt,
            generated=generated,
            logits=logits,
            cached=ledger.usable,
            processed=Count(len(prompt) - ledger.usable),
            equal=Count(equal),
            equal_with="slot 0",
            losses=ledger.losses,
            slot=0,
        )

    def _answer(self, request: Request) -> tuple[Tokens, Array]:
        most = max(1, request.predict)
        if not self.computes:  # a trace: its tokens are a rope, and nobody asks for logits
            generated = tuple(request.reply or (Token(0),) * most)[:most]
            return generated, np.zeros((len(generated), 0))
        skips = self.rules.skips_first and len(request.prompt) > 1
        prompt = request.prompt[1:] if skips else request.prompt
        generated = () if request.reply is None else request.reply[:most]
        while request.reply is None and len(generated) < most:
            row = self.oracle.logits(prompt, (*generated, Token(0)))[-1]
            generated = (*generated, self.network.sample(row))
        return generated, self.oracle.logits(prompt, generated)

    def reply(self, ticket: Ticket) -> Reply | None:
        return self.answers.get(ticket)

    def forget(self, ticket: Ticket) -> None:
        self.answers.pop(ticket, None)
        self.log.clear()

    def cancel(self, ticket: Ticket) -> None:
        self.queue = [(each, request) for each, request in self.queue if each != ticket]

    def snapshot(self) -> dict[str, Any]:
        checkpoints = [{"pos_min": 0, "pos_max": 0, "n_tokens": 1}] if self.known else []
        slot = {"id": 0, "tokens": list(self.known), "checkpoints": checkpoints}
        return {"slots": [slot], "prompt_cache": []}

    def check_integrity(self) -> None:
        """There is nothing that could disagree."""
