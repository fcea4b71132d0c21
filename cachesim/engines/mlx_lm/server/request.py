"""A request of mlx-lm's server: its prompt, segments, checkpoint and result."""

import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from cachesim.engines.base import Reply, Request, Ticket
from cachesim.engines.causes import Ledger
from cachesim.engines.chat import ChatTokenizer, Message, TemplateArguments, ThinkMarks
from cachesim.engines.images import Image
from cachesim.engines.mlx_lm.generate.shared import Sampler, Stopper
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import ServerRules
from cachesim.engines.tokens import get_common_prefix
from cachesim.errors import OptionError, TokenError
from cachesim.model.arithmetic import Network
from cachesim.model.build import arithmetic_of
from cachesim.units import Array, Count, Token, Tokens

# From a request to a prompt, with the positions of stored states.
#
#     [0, system_end) "system"   [system_end, tail) "user"   [tail, n) "assistant"
#
# Before #1072 there were no segments but one checkpoint, counted from the end of the prompt.

SegmentType: TypeAlias = Literal["system", "user", "assistant"]

LONGEST_TAIL: Final = 11
"""Maximum distance from the end at which a thinking mark opens a tail."""

SENTINEL: Final = "x"
"""The text that replaces the last user message in #1006."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A range of the prompt, with a stored state at its end."""

    type: SegmentType
    tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The checkpoint of #911, one per request; its position is counted from the end."""

    store: bool = False
    position: int = -1


def tokenize(
    tokenizer: ChatTokenizer, messages: Sequence[Message], prompt: Tokens
) -> tuple[Tokens, bool]:
    """The prompt of a request; True for a chat. Follows `_tokenize`."""
    if messages:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True), True
    return prompt, False


def system_end(tokenizer: ChatTokenizer, messages: Sequence[Message], prompt: Tokens) -> int:
    """First token unlike the system messages before an empty user message (`_tokenize`)."""
    leading = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
    if leading == 0:
        return 0
    # An empty user message makes the user's header a part of the system segment.
    empty = (*messages[:leading], Message(role="user", content=""))
    system = tokenizer.apply_chat_template(empty, add_generation_prompt=False)
    pairs = enumerate(zip(system, prompt, strict=False))
    # Without a difference in the shorter of the two there is no such segment.
    return next((i for i, (one, other) in pairs if one != other), 0)


def opening_mark(tokenizer: ChatTokenizer) -> Tokens:
    """The tokens that open a reasoning part; before #1072 only marks of one token."""
    if isinstance(tokenizer, ThinkMarks):
        return tokenizer.think_start_tokens
    return () if tokenizer.think_start is None else (tokenizer.think_start,)


def tail_start(mark: Tokens, prompt: Tokens) -> int:
    """Start of a tail opened by a thinking mark near the end, else the prompt's length.

    Follows `rfind_think_start` with `start = n - 11`, which does not go below 0.
    """
    first, last = max(0, len(prompt) - LONGEST_TAIL), len(prompt) - len(mark)
    places = range(last, first - 1, -1) if mark else ()
    return next((i for i in places if prompt[i : i + len(mark)] == mark), len(prompt))


def at_chunks(segments: Sequence[Segment], step: int) -> tuple[Segment, ...]:
    """Segments that end where a chunk of a cold prefill does, as #1667 proposes."""
    return tuple(
        Segment(type=segment.type, tokens=segment.tokens[start : start + step])
        for segment in segments
        for start in range(0, len(segment.tokens), step)
    )


def cut(
    tokenizer: ChatTokenizer, messages: Sequence[Message], prompt: Tokens
) -> tuple[Segment, ...]:
    """Up to three segments of a prompt. Follows `_tokenize` from #1072 on."""
    whole = (Segment(type="assistant", tokens=prompt),)
    # A reply that is continued, or a tool's answer, is one segment as a whole.
    if not messages or messages[-1].role != "user":
        return whole
    start = system_end(tokenizer, messages, prompt)
    tail = tail_start(opening_mark(tokenizer), prompt)
    segments = []
    if 0 < start < len(prompt):
        segments.append(Segment(type="system", tokens=prompt[:start]))
    if start < tail:
        segments.append(Segment(type="user", tokens=prompt[start:tail]))
    if tail < len(prompt):
        segments.append(Segment(type="assistant", tokens=prompt[tail:]))
    return tuple(segments) or whole


def without_cached(
    segments: Sequence[Segment], cached: int
) -> tuple[list[Tokens], list[SegmentType]]:
    """Segments after a hit: cached ones are dropped with their type, one is cut.

    Follows the loop of `_generate`. An exact hit leaves none.
    """
    tokens = [segment.tokens for segment in segments]
    types = [segment.type for segment in segments]
    left = cached
    while left > 0:
        # A cached segment is dropped with its type; the one in which the match ends is cut.
        if left >= len(tokens[0]):
            left -= len(tokens.pop(0))
            types.pop(0)
        else:
            tokens[0] = tokens[0][left:]
            break
    return tokens, types


def prompt_checkpoint(
    rules: ServerRules,
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    prompt: Tokens,
    *,
    trimmable: bool,
) -> Checkpoint:
    """The checkpoint of a prompt, if a state is to be stored (`_compute_prompt_checkpoint`)."""
    if not messages or messages[-1].role != "user":
        return Checkpoint()
    # #1006: before the last user text, for caches that cannot be trimmed.
    if rules.checkpoint_at_last_user and not trimmable:
        return Checkpoint(store=True, position=_last_user_text(tokenizer, messages, prompt))
    # The last token, or the one before a thinking mark that is at most nine from the end.
    return Checkpoint(store=True, position=_before_thinking(tokenizer.think_start, prompt))


def _before_thinking(think_start: Token | None, prompt: Tokens) -> int:
    for back in range(1, min(LONGEST_TAIL, len(prompt)) - 1):
        if think_start is not None and prompt[-back] == think_start:
            return -back - 1
    return -1


def _last_user_text(tokenizer: ChatTokenizer, messages: Sequence[Message], prompt: Tokens) -> int:
    before = messages[:-1]
    if not before:
        return -1
    substituted = (*before, Message(role="user", content=SENTINEL))
    other = tokenizer.apply_chat_template(substituted, add_generation_prompt=True)
    common = get_common_prefix(prompt, other)
    return common - len(prompt) if 0 < common < len(prompt) else -1


def message_boundaries(
    tokenizer: ChatTokenizer, messages: Sequence[Message], *, after_every_message: bool
) -> tuple[Count, ...]:
    """The lengths of the rendered first 1, 2, ... messages (`_compute_message_boundaries`)."""
    # #923 leaves out the whole conversation; #929 includes it.
    last = len(messages) + after_every_message
    rendered = (
        tokenizer.apply_chat_template(messages[:count], add_generation_prompt=False)
        for count in range(1, last)
    )
    return tuple(Count(len(tokens)) for tokens in rendered if tokens)


def snapshot_key(
    rules: ServerRules, tokenizer: ChatTokenizer, messages: Sequence[Message], prompt: Tokens
) -> tuple[Tokens, tuple[Count, ...]]:
    """Key of a prompt in the snapshot store, and the ends of its messages.

        key       [ message 1 ][ message 2 ] ... [ message m ]
        state     [ the same, the generation prompt and the reply, and whatever earlier turns left ]

    Follows `_tokenize_for_cache_key`. Without #923 the prompt is its own key.
    """
    if rules.snapshots is None or not messages:
        return prompt, ()
    # The template without the generation prompt: the key omits tokens that are in the state, so
    # every state is longer than its key.
    key = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    every = rules.snapshots.boundary_after_every_message
    return key, message_boundaries(tokenizer, messages, after_every_message=every)


ReplyTokens: TypeAlias = Generator[Token, None, None]
"""The tokens of a reply, one by one; a close removes rejected drafts from the caches."""


@dataclass(slots=True, kw_only=True)
class Job:
    """A request, its plan and its result."""

    ticket: Ticket
    messages: tuple[Message, ...]
    tokenizer: ChatTokenizer  # with the request's template arguments
    prompt: Tokens
    model: str = ""
    seeded: bool
    streams: bool = False
    images: tuple[Image, ...] = ()
    max_tokens: int
    sampler: Sampler
    stopper: Stopper
    watcher: Stopper | None = None  # stop words that only the HTTP side matches
    drafts: tuple[Tokens, ...] = ()  # forced drafts, step by step
    unfed: int = 0  # tokens at the end of the reply that are not fed yet
    ends: int | None = None  # length of a forced reply with a draft model
    ready: Array | None = None  # logits after the whole prompt, from the store
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
    quantized: bool = False  # keys and values were quantised
    finish_reason: str | None = None
    error: str | None = None
    message: str = ""

    def add_token(self, token: Token) -> None:
        """Add a token; before #1072 the HTTP side ends a reply at a stop word."""
        self.generated.append(token)
        if self.watcher is not None and self.watcher.advance(token):
            self.should_stop = True

    @property
    def done(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def reply(self) -> Reply:
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
    """The job of a request; unsupported fields are refused."""
    drafts = options.draft_model is not None
    foreign = {
        "slot": request.slot != -1,
        "cache_prompt": not request.cache_prompt,
        "completions": request.completions != 1,
        "drafts": request.drafts is not None and not drafts,
    }
    for name, present in foreign.items():
        if present:
            raise OptionError(f"a request to mlx-lm has no field {name!r}: leave it out")
    tokenizer = _with_arguments(tokenizer, fields)
    prompt, chat = tokenize(tokenizer, request.messages, request.prompt)
    if chat and request.prompt and request.prompt != prompt:
        raise TokenError(
            "the prompt is not what the chat template makes of the messages: leave it out, or "
            "name the template with the option chat_template"
        )
    if not prompt:
        raise TokenError("a prompt without tokens: write messages or at least one token")
    prompt = tuple(prompt)
    if arithmetic_of(network) != "counts":  # without a network tokens may be any numbers
        _refuse_tokens((*prompt, *chain.from_iterable(request.drafts or ())), network)
    limit = predict = options.max_tokens if request.predict < 0 else request.predict
    if request.reply is not None:
        limit = min(limit, len(request.reply)) if request.predict >= 0 else len(request.reply)
    words = tuple(tokenizer.encode(word) for word in fields.get("stop_words", ()))
    forced = limit if request.reply is not None else None
    watcher = None
    if words and not rules.stop_words_end_generation:
        watcher, words = Stopper(words, forced), ()
        limit = max(limit, predict)  # the worker continues until it is stopped
    ends = None
    if options.draft_model is not None:
        ends, limit = forced, max(limit, predict)  # as many drafts as for a longer reply
    job = Job(
        ticket=ticket,
        messages=request.messages,
        tokenizer=tokenizer,
        prompt=prompt,
        model=request.model,
        seeded="seed" in fields,
        streams=bool(fields.get("stream", False)),
        images=request.images,
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


def keyed(prompt: Tokens, images: Sequence[Image]) -> Tokens:
    """The lookup key: a negative id of an image in place of its tokens (`_make_vision`)."""
    key = list(prompt)
    for image in images:
        number = int(hashlib.sha256(image.name.encode()).hexdigest()[:15], 16)
        key[image.start : image.end] = [Token(-1 - number)] * image.count
    return tuple(key)


def _with_arguments(tokenizer: ChatTokenizer, fields: Mapping[str, Any]) -> ChatTokenizer:
    """The tokenizer with a request's `tools` and `chat_template_kwargs`."""
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


def _refuse_tokens(prompt: Tokens, network: Network) -> None:
    vocabulary = network.spec.vocabulary
    if min(prompt) >= 0 and max(prompt) < vocabulary:
        return
    outside = next(token for token in prompt if not 0 <= token < vocabulary)
    raise TokenError(f"token {outside} of the prompt is outside the vocabulary of {vocabulary}")
