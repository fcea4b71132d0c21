"""A request on its way through mlx-lm's server."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from cachesim.engines.base import Reply, Request, Ticket
from cachesim.engines.chat import ChatTokenizer, TemplateArguments
from cachesim.engines.chat_templates import Message
from cachesim.engines.ledger import Ledger
from cachesim.engines.mlx_lm.generate.shared import Sampler, Stopper
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import ServerRules
from cachesim.engines.mlx_lm.server.segments import Checkpoint, SegmentType, tokenize
from cachesim.errors import OptionError, TokenError
from cachesim.model.arithmetic import Network
from cachesim.model.build import arithmetic_of
from cachesim.units import Count, Token, Tokens

Said: TypeAlias = Generator[Token, None, None]
"""The tokens of a reply, one by one; closed early, it puts its caches in order."""


@dataclass(slots=True, kw_only=True)
class Job:
    """A request, what was decided for it, and what came of it."""

    ticket: Ticket
    messages: tuple[Message, ...]
    tokenizer: ChatTokenizer  # with what the request tells the template
    prompt: Tokens
    seeded: bool
    max_tokens: int
    sampler: Sampler
    stopper: Stopper
    watcher: Stopper | None = None  # stop words that only the HTTP side looks at
    drafts: tuple[Tokens, ...] = ()  # what the draft model proposes, step by step
    unfed: int = 0  # tokens at the end of the reply that the model has not been fed
    ends: int | None = None  # where a forced reply ends before its limit
    uid: int = -1
    cached: Count | None = None
    segment_types: list[SegmentType] = field(default_factory=list)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    cache_key: list[Token] = field(default_factory=list)
    boundaries: tuple[Count, ...] = ()
    old_position: Sequence[int] | None = None
    generated: list[Token] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    should_stop: bool = False
    quantized: bool = False  # keys and values were packed on the way
    finish_reason: str | None = None
    error: str | None = None
    message: str = ""

    def say(self, token: Token) -> None:
        """The client gets a token; before #1072 the HTTP side ends a reply at a stop word."""
        self.generated.append(token)
        if self.watcher is not None and self.watcher.advance(token):
            self.should_stop = True

    @property
    def done(self) -> bool:
        """True if there is nothing more to come."""
        return self.finish_reason is not None or self.error is not None

    def reply(self) -> Reply:
        """Reply to the client."""
        served = self.error is None
        rows = self.sampler.rows[: len(self.generated)]
        return Reply(
            prompt=self.prompt,
            generated=tuple(self.generated),
            logits=np.stack(rows) if rows else np.zeros((0, 0)),
            cached=self.cached if served else None,
            processed=Count(len(self.prompt) - (self.cached or 0)) if served else None,
            equal=self.ledger.equal,
            equal_with=self.ledger.equal_with,
            losses=self.ledger.losses,
            error=self.error,
            message=self.message,
            approximated="quantised keys and values" if self.quantized else None,
        )


def job_of(
    ticket: Ticket,
    request: Request,
    fields: Mapping[str, Any],
    *,
    tokenizer: ChatTokenizer,
    network: Network,
    options: MlxOptions,
    rules: ServerRules,
) -> Job:
    """Read a request; what mlx-lm's server does not know is refused."""
    _refuse_foreign(request, drafts=options.draft_model is not None)
    tokenizer = _with_arguments(tokenizer, fields)
    prompt, chat = tokenize(tokenizer, request.messages, request.prompt)
    if chat and request.prompt and request.prompt != prompt:
        msg = (
            "the prompt is not what the chat template makes of the messages: leave it out, or "
            "name the template with the option chat_template"
        )
        raise TokenError(msg)
    if not prompt:
        msg = "a prompt without tokens: write messages or at least one token"
        raise TokenError(msg)
    prompt = tuple(prompt)
    if arithmetic_of(network) != "counts":  # without a network tokens may be any numbers
        _refuse_tokens((*prompt, *chain.from_iterable(request.drafts or ())), network)
    limit = asked = options.max_tokens if request.predict < 0 else request.predict
    if request.reply is not None:
        limit = min(limit, len(request.reply)) if request.predict >= 0 else len(request.reply)
    words = tuple(tokenizer.encode(word) for word in fields.get("stop_words", ()))
    forced = limit if request.reply is not None else None
    watcher = None
    if words and not rules.stop_words_end_generation:
        watcher, words = Stopper(words, forced), ()
        limit = max(limit, asked)  # the worker goes on until it is told
    ends = None
    if options.draft_model is not None:
        ends, limit = forced, max(limit, asked)  # as many drafts as for a longer reply
    job = Job(
        ticket=ticket,
        messages=request.messages,
        tokenizer=tokenizer,
        prompt=prompt,
        seeded="seed" in fields,
        max_tokens=limit,
        sampler=Sampler(network, request.reply),
        stopper=Stopper(((tokenizer.eos,), *words), forced),
        watcher=watcher,
        drafts=request.drafts or (),
        ends=ends,
        ledger=Ledger(),
    )
    if limit < 1 and (rules.no_tokens == "refused" or request.reply == ()):
        job.error = "ValueError"
        job.message = "max_tokens must be at least 1"
    return job


def _with_arguments(tokenizer: ChatTokenizer, fields: Mapping[str, Any]) -> ChatTokenizer:
    """The tokenizer as `tools` and `chat_template_kwargs` have it, with every rendering of it."""
    tools, arguments = fields.get("tools", ()), fields.get("chat_template_kwargs", {})
    if not tools and not arguments:
        return tokenizer
    if not isinstance(arguments, Mapping):
        msg = f"chat_template_kwargs is {arguments!r}; write {{ enable_thinking = false }}"
        raise OptionError(msg)
    if not isinstance(tokenizer, TemplateArguments):
        msg = "this tokenizer's chat template takes neither tools nor arguments: leave them out"
        raise OptionError(msg)
    bound: ChatTokenizer = tokenizer.with_arguments(tools, arguments)
    return bound


def _refuse_foreign(request: Request, *, drafts: bool) -> None:
    foreign = {
        "slot": request.slot != -1,
        "cache_prompt": not request.cache_prompt,
        "completions": request.completions != 1,
        "drafts": request.drafts is not None and not drafts,
    }
    for name, present in foreign.items():
        if present:
            msg = f"a request to mlx-lm has no field {name!r}: leave it out"
            raise OptionError(msg)


def _refuse_tokens(prompt: Tokens, network: Network) -> None:
    vocabulary = network.spec.vocabulary
    if min(prompt) >= 0 and max(prompt) < vocabulary:
        return
    outside = next(token for token in prompt if not 0 <= token < vocabulary)
    msg = f"token {outside} of the prompt is outside the vocabulary of {vocabulary}"
    raise TokenError(msg)
