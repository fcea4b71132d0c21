"""Recorded requests as ropes of tokens: common prefixes and lengths.

    request 3   [ message 1 ][ message 2 ] + reply        text 6, and text 7 for the reply
    request 4   [ message 1 ][ message 2 ][ the reply ][ message 4 ]
    as a rope   (6, 0, 310)               (7, 0, 42)   (8, 352, 377)

Where the recorder could ask the server for tokens, a line brings its runs along. Else places in the
text are turned into places among tokens: the server reports how many a prompt has, and what lies
between two known places is taken to be even.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from cachesim.engines.tokens import Rope
from cachesim.why.read.dump import Recorded
from cachesim.why.read.observed import How

Anchor: TypeAlias = tuple[int, int]
"""Character counts, and their tokens."""

PER_CHARACTER: Final = 0.27
"""Tokens per character of English and code, until a request was counted."""

LONGEST_OPENING: Final = 512
"""Most tokens that templates put before the first text; more belong to other texts."""

SLACK: Final = 24
SHARE: Final = 0.03
"""Tolerance within which an estimate is replaced by the server's reuse."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A recorded request in tokens."""

    recorded: Recorded
    rope: Rope
    reply: Rope
    equal: int  # tokens equal to the beginning of an earlier request
    equal_characters: int  # of texts, what templates write between them left out
    anchors: tuple[Anchor, ...]
    user_starts: tuple[int, ...]
    how: How

    @property
    def whole(self) -> Rope:
        """Prompt and reply, as in a slot."""
        rope = self.rope.copy()
        rope += self.reply
        return rope


@dataclass(slots=True)
class Prompts:
    """All prompts so far; each new one shares a prefix with its base."""

    made: dict[int, Prompt] = field(default_factory=dict)
    per_character: float = PER_CHARACTER
    _openings: dict[str, int] = field(default_factory=dict)
    _openers: dict[str, Prompt] = field(default_factory=dict)

    def add(self, request: Recorded, base: Recorded | None, equal_characters: int) -> Prompt:
        """Add the rope of a request; `base` is the earlier one with the longest common prefix."""
        earlier = self.made.get(base.number) if base is not None else None
        if request.runs:
            rope = Rope(request.runs)
            equal = 0 if earlier is None else earlier.whole.common(rope)
            prompt = Prompt(
                recorded=request,
                rope=rope,
                reply=reply_of(request),
                equal=equal,
                equal_characters=0,
                anchors=((0, 0), (request.characters, len(rope))),
                user_starts=request.user_starts,
                how="computed",
            )
        else:
            prompt = self._estimated(request, earlier, equal_characters)
            # Infer the template's opening from reuse without any equal text.
            #
            # chat 3   <|im_start|> system <nl> Be kind ...
            # chat 4   <|im_start|> system <nl> You write titles ... cached 3, no text matches
            first = _opening_of(request)
            if first not in self._openers:
                self._openers[first] = prompt
            elif prompt.equal_characters == 0 and 0 < (request.cached or 0) <= LONGEST_OPENING:
                least = self._openings.get(first, LONGEST_OPENING)
                self._openings[first] = min(least, request.cached or 0)
        self.made[request.number] = prompt
        return prompt

    def forget(self, number: int) -> None:
        """Drop an early request."""
        self.made.pop(number, None)

    def _estimated(
        self, request: Recorded, earlier: Prompt | None, equal_characters: int
    ) -> Prompt:
        first = _opening_of(request)
        opening = self._openings.get(first, 0)
        before: tuple[Anchor, ...] = ((0, opening),)
        begin = self._openers[first].rope if opening else Rope()
        if earlier is not None:
            before = ((0, opening), *_anchors_with_reply(earlier)[1:])
            begin = earlier.whole
        characters = request.characters
        equal = min(_tokens_at(before, equal_characters), len(begin))
        total = request.prompt_tokens
        if total is None:
            total = equal + round((characters - equal_characters) * self.per_character) + 1
        else:
            self.per_character = max(0.01, total / max(1, characters))
            if equal_characters:
                equal = nearest(equal, total, len(begin), request.cached)
        equal = min(equal, total)
        kept = tuple(pair for pair in before if pair[0] < equal_characters and pair[1] <= equal)
        anchors = (*(kept or ((0, 0),)), (equal_characters, equal), (characters, total))
        rope = begin[:equal]
        rope += Rope([(2 * request.number, equal, total)])
        return Prompt(
            recorded=request,
            rope=rope,
            reply=reply_of(request),
            equal=equal,
            equal_characters=equal_characters,
            anchors=anchors,
            user_starts=tuple(_starts_of(request, anchors)),
            how="assumed",
        )


def _opening_of(request: Recorded) -> str:
    return f"{request.segments[0].kind} {request.segments[0].role}" if request.segments else ""


def reply_of(request: Recorded) -> Rope:
    """The tokens of a reply; the last sampled one is in no cache."""
    return Rope.of(2 * request.number + 1, request.generated or 0)


def _anchors_with_reply(earlier: Prompt) -> tuple[Anchor, ...]:
    """Anchors of a prompt's text and its reply."""
    characters = sum(segment.length for segment in earlier.recorded.reply)
    if not characters:
        return earlier.anchors
    last, tokens = earlier.anchors[-1]
    return (*earlier.anchors, (last + characters, tokens + len(earlier.reply)))


def _tokens_at(anchors: Sequence[Anchor], characters: int) -> int:
    low, tokens = anchors[0]
    for at, count in anchors:
        if at >= characters:
            between = max(1, at - low)
            return tokens + (count - tokens) * (characters - low) // between
        low, tokens = at, count
    return tokens


def nearest(equal: int, total: int, most: int, cached: int | None) -> int:
    """An estimate of matching tokens, at least those that the server reused."""
    if cached is None:
        return equal
    near = abs(cached - equal) <= SLACK + SHARE * total
    if cached >= total - 1 and most >= total:
        return total
    return min(cached, most) if near or cached > equal else equal


def _starts_of(request: Recorded, anchors: Sequence[Anchor]) -> list[int]:
    found, at, before = [], 0, ""
    for segment in request.segments:
        if segment.role == "user" and segment.part != before:
            found.append(_tokens_at(anchors, at))
        before = segment.part
        at += segment.length
    total = anchors[-1][1]
    return sorted({start for start in found if 0 < start < total})
