"""From a request to a prompt, and where on its way a state is worth keeping.

    [0, system_end) "system"   [system_end, tail) "user"   [tail, n) "assistant"

Before #1072 there were no segments but one checkpoint, counted from the end of the prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from cachesim.engines.chat import ChatTokenizer, LongMarks
from cachesim.engines.chat_templates import Message
from cachesim.engines.mlx_lm.rules import ServerRules
from cachesim.engines.tokens import get_common_prefix
from cachesim.units import Count, Token, Tokens

SegmentType: TypeAlias = Literal["system", "user", "assistant"]

LONGEST_TAIL: Final = 11
"""Largest distance from the end at which a thinking mark still opens a tail."""

SENTINEL: Final = "x"
"""The text that #1006 puts in the place of the last user message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of the prompt whose end is worth a stored state."""

    type: SegmentType
    tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """#911's one state per request: whether to store it, and where, counted from the end."""

    store: bool = False
    position: int = -1


def tokenize(
    tokenizer: ChatTokenizer, messages: Sequence[Message], prompt: Tokens
) -> tuple[Tokens, bool]:
    """The prompt of a request, and whether it is a chat. Follows `_tokenize`."""
    if messages:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True), True
    return prompt, False


def system_end(tokenizer: ChatTokenizer, messages: Sequence[Message], prompt: Tokens) -> int:
    """First token that differs from the system messages with an empty user message.

    Follows `_tokenize`. The user's header belongs to the system segment; no difference within
    the shorter of the two means that there is no such segment.
    """
    leading = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
    if leading == 0:
        return 0
    empty = (*messages[:leading], Message(role="user", content=""))
    system = tokenizer.apply_chat_template(empty, add_generation_prompt=False)
    pairs = enumerate(zip(system, prompt, strict=False))
    return next((i for i, (one, other) in pairs if one != other), 0)


def opening_mark(tokenizer: ChatTokenizer) -> Tokens:
    """The tokens that open a reasoning part; before #1072 only a mark of one token was known."""
    if isinstance(tokenizer, LongMarks):
        return tokenizer.think_start_tokens
    return () if tokenizer.think_start is None else (tokenizer.think_start,)


def tail_start(mark: Tokens, prompt: Tokens) -> int:
    """Start of a tail opened by a thinking mark near the end, else the prompt's length.

    Follows `rfind_think_start` with `start = n - 11`, which does not go below 0.
    """
    first, last = max(0, len(prompt) - LONGEST_TAIL), len(prompt) - len(mark)
    places = range(last, first - 1, -1) if mark else ()
    return next((i for i in places if prompt[i : i + len(mark)] == mark), len(prompt))


def cut(
    tokenizer: ChatTokenizer, messages: Sequence[Message], prompt: Tokens
) -> tuple[Segment, ...]:
    """Up to three segments of a prompt. Follows `_tokenize` from #1072 on."""
    whole = (Segment(type="assistant", tokens=prompt),)
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
    """Segments behind a hit: whole ones are dropped with their type, one is cut.

    Follows the loop of `_generate`. An exact hit leaves nothing at all.
    """
    tokens = [each.tokens for each in segments]
    types = [each.type for each in segments]
    left = cached
    while left > 0:
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
    """Check whether to keep a state of this prompt, and how far from its end.

    Follows `_compute_prompt_checkpoint`: the last token, or the one before a thinking mark that
    is at most nine from the end; with #1006, for caches that cannot be trimmed, the last user text.
    """
    if not messages or messages[-1].role != "user":
        return Checkpoint()
    if rules.checkpoint_at_last_user and not trimmable:
        return Checkpoint(store=True, position=_last_user_text(tokenizer, messages, prompt))
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
    """The lengths of the rendered first 1, 2, ... messages. Follows `_compute_message_boundaries`.

    #923 leaves out the whole conversation; #929 counts it too, where it equals the key's length.
    """
    last = len(messages) + after_every_message
    rendered = (
        tokenizer.apply_chat_template(messages[:count], add_generation_prompt=False)
        for count in range(1, last)
    )
    return tuple(Count(len(tokens)) for tokens in rendered if tokens)


def snapshot_key(
    rules: ServerRules,
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    prompt: Tokens,
) -> tuple[Tokens, tuple[Count, ...]]:
    """Key of a prompt in the snapshot store, and the ends of its messages.

        key       [ message 1 ][ message 2 ] ... [ message m ]
        state     [ the same, the generation prompt and the reply, and whatever earlier turns left ]

    The key leaves out what the state has folded in, so every state is longer than its key.

    Follows `_tokenize_for_cache_key`: the template without the generation prompt. Without #923 the
    prompt is its own key.
    """
    if rules.snapshots is None or not messages:
        return prompt, ()
    key = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    every = rules.snapshots.boundary_after_every_message
    return key, message_boundaries(tokenizer, messages, after_every_message=every)
