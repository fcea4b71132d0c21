"""A request from outside: what was asked for, and what came of it."""

from dataclasses import dataclass, field

import numpy as np

from cachesim.engines import base
from cachesim.engines.ledger import Ledger
from cachesim.engines.sglang.request import Req
from cachesim.errors import OptionError, TokenError
from cachesim.units import Array, Count, Token, Tokens


@dataclass(slots=True, kw_only=True)
class Job:
    """One request's evidence."""

    ticket: base.Ticket
    prompt: Tokens
    req: Req | None = None
    forced: Tokens | None = None
    ledger: Ledger = field(default_factory=Ledger)
    rows: list[Array] = field(default_factory=list)
    cached: Count | None = None
    error: str | None = None
    message: str = ""
    done: bool = False

    @property
    def generated(self) -> Tokens:
        """What was sampled."""
        if self.req is None:
            return ()
        found = self.req.tokens[self.req.num_prompt : self.req.num_tokens]
        return tuple(Token(int(each)) for each in found)

    def reply(self) -> base.Reply:
        """What the client gets."""
        served = self.error is None
        generated = self.generated
        rows = self.rows[: len(generated)]
        cached = self.cached or Count(0)
        return base.Reply(
            prompt=self.prompt,
            generated=generated,
            logits=np.stack(rows) if rows else np.zeros((0, 0)),
            cached=cached if served else None,
            processed=Count(len(self.prompt) - cached) if served else None,
            equal=self.ledger.equal,
            equal_with=self.ledger.equal_with,
            losses=self.ledger.losses,
            error=self.error,
            message=self.message,
        )


def check(request: base.Request, vocabulary: int | None) -> None:
    """Refuse what a request to SGLang cannot have; None: tokens may be any numbers."""
    foreign = {
        "slot": request.slot != -1,
        "completions": request.completions != 1,
        "messages": bool(request.messages),
        "drafts": request.drafts is not None,
        "cache_prompt": not request.cache_prompt,
    }
    for name, present in foreign.items():
        if present:
            msg = f"a request to sglang has no field {name!r} here: leave it out"
            raise OptionError(msg)
    if not request.prompt:
        msg = "a prompt without tokens: write at least one"
        raise TokenError(msg)
    if vocabulary is None:
        return
    outside = next((each for each in request.prompt if not 0 <= each < vocabulary), None)
    if outside is not None:
        msg = f"token {outside} of the prompt is outside the vocabulary of {vocabulary}"
        raise TokenError(msg)
