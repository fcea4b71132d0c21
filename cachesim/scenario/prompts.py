"""Rendering of a step's prompt, reply and messages as tokens while a scenario runs."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar

import numpy as np

from cachesim.engines.chat import FIRST_WORD, THINK_MARKS, ByteTokenizer, Message
from cachesim.engines.images import Image
from cachesim.errors import ScenarioError, SpecError
from cachesim.model import recall
from cachesim.model.spec import ModelSpec
from cachesim.scenario.format import Prompt, Scenario, Step, Turn
from cachesim.typed import there_is
from cachesim.units import Array, Count, Pos, Token, Tokens, as_tokens
from cachesim.verify.explain import Part

Rendered: TypeAlias = tuple[Tokens, Sequence[tuple[str, int]]]
"""A rendered chat: the prompt, and role and first token of every message."""

Gap: TypeAlias = Callable[[Tokens, Tokens], tuple[Tokens, int]]
"""A rendered infill prompt, and the index of the suffix's mark."""

Renderer: TypeAlias = Callable[[Sequence[Message], Mapping[str, Any]], Rendered]
"""A server's chat rendering with the request's further fields."""

REPLY: Final = ".reply"
WORD: Final = re.compile(r"(?P<name>[^\[\]]+)(\[(?P<start>\d{0,6}):(?P<end>\d{0,6})\])?")
"""A span, a reply, or a slice: `S`, `A.reply`, `S[:50]`."""

PLACE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*(?:\.reply)?(?:\[\d{0,6}:\d{0,6}\])?)\}")
"""A span or reply inside the text of a message."""


@dataclass(slots=True, kw_only=True)
class Vocabulary:
    """The tokens of a run's names; replies are added as they are generated."""

    tokenizer: ByteTokenizer
    spans: dict[str, Tokens]
    pictures: tuple[str, ...] = ()  # spans that are images
    replies: dict[str, Tokens] = field(default_factory=dict)
    server: Renderer | None = None  # where the server renders chats in a way of its own
    gap: Gap | None = None  # where the server fills gaps
    _shown: tuple[object, Rendered] | None = None  # the last chat, which is rendered twice

    @classmethod
    def of(cls, scenario: Scenario, spec: ModelSpec) -> "Vocabulary":
        """The spans of a scenario, drawn for a model's vocabulary."""
        tokenizer = ByteTokenizer(scenario.chat.template, recall.TEXTS if spec.recall else {})
        spans = draw_spans(
            scenario.spans,
            seed=scenario.model.seed,
            tokenizer=tokenizer,
            vocabulary=spec.vocabulary,
            recalls=spec.recall,
        )
        return cls(tokenizer=tokenizer, spans=spans, pictures=scenario.images)

    def look_up(self, word: str) -> Tokens:
        """The tokens of a span or of a reply; a refused step has an empty reply."""
        name, piece = piece_of(word)
        if name.endswith(REPLY):
            return self.replies.get(name.removesuffix(REPLY), ())[piece]
        return self.spans[name][piece]

    def tokens(self, value: str | tuple[int, ...]) -> Tokens:
        """The tokens of `S a A.reply`, or of ids."""
        if not isinstance(value, str):
            return as_tokens(value)
        words = value.split()
        if len(words) == 1:
            return self.look_up(words[0])
        return tuple(token for word in words for token in self.look_up(word))

    def messages(self, turns: tuple[Turn, ...]) -> tuple[Message, ...]:
        """The messages with spans and replies substituted."""
        return tuple(
            Message(role=turn.role, content=PLACE.sub(self._text_at, turn.content))
            for turn in turns
        )

    def _text_at(self, place: re.Match[str]) -> str:
        return self.tokenizer.decode(self.look_up(place[1]))

    def prompt(self, step: Step) -> Tokens:
        if step.messages:
            return self._rendered(step)[0]
        prompt = self.tokens(step.prompt or "")
        if self.gap is not None and step.options.get("endpoint") == "infill":
            return self.gap(prompt, self.tokens(step.suffix or ""))[0]
        return prompt

    def images(self, step: Step) -> tuple[Image, ...]:
        """The images of a step's prompt."""
        if not self.pictures:
            return ()
        return tuple(
            Image(part.name, Pos(part.start), Count(part.end - part.start))
            for part in self._named(step.prompt, "prompt")
            if part.name in self.pictures
        )

    def _rendered(self, step: Step) -> Rendered:
        messages = self.messages(step.messages)
        key = messages, repr(step.options)
        if self._shown is None or self._shown[0] != key:
            self._shown = key, self._render(step, messages)
        return self._shown[1]

    def _render(self, step: Step, messages: tuple[Message, ...]) -> Rendered:
        if self.server is not None:
            return self.server(messages, step.options)
        tools = step.options.get("tools", ())
        tools = (tools,) if isinstance(tools, str) else tools  # one text is a list of one
        arguments = step.options.get("chat_template_kwargs", {})
        tokenizer = self.tokenizer
        # Values of another type are ignored here: the engine refuses them next.
        if _are_texts(tools) and isinstance(arguments, Mapping) and (tools or arguments):
            tokenizer = tokenizer.with_arguments(tools, arguments)
        return tokenizer.apply_chat_template(messages), tokenizer.message_starts(messages)

    def parts(self, step: Step, prompt: Tokens) -> tuple[Part, ...]:
        """The spans or messages of a prompt, in order."""
        if step.messages:
            starts = self._rendered(step)[1]
            named = [(f"{role} message {i + 1}", int(at)) for i, (role, at) in enumerate(starts)]
            ends = [at for _, at in named[1:]] + [len(prompt)]
            before = named[0][1] if named else 0
            first = (Part(name="tools", start=0, end=before),) if before else ()
            return first + tuple(
                Part(name=name, start=start, end=end)
                for (name, start), end in zip(named, ends, strict=True)
            )
        if self.gap is not None and step.options.get("endpoint") == "infill":
            return self._around_the_gap(step, prompt)
        return tuple(self._named(step.prompt, "prompt"))

    def _around_the_gap(self, step: Step, prompt: Tokens) -> tuple[Part, ...]:
        """The infill marks, with the kept spans before and behind the gap.

        prompt  [ mark | prefix, its start dropped | mark | suffix, its end dropped | mark )
        """
        prefix, last = self.tokens(step.prompt or ""), len(prompt) - 1
        _, middle = there_is(self.gap)(prefix, self.tokens(step.suffix or ""))
        before = (
            replace(part, start=max(1, part.start), end=part.end)
            for part in self._named(step.prompt, "prefix", middle - len(prefix))
            if part.end > 1
        )
        behind = (
            replace(part, end=min(part.end, last))
            for part in self._named(step.suffix, "suffix", middle + 1)
            if part.start < last
        )
        marks = (Part(name="mark of the gap", start=at, end=at + 1) for at in (0, middle, last))
        return tuple(sorted((*marks, *before, *behind), key=attrgetter("start")))

    def _named(self, value: Prompt, name: str, at: int = 0) -> Iterator[Part]:
        """The spans of a prompt from a position on, by name; ids have one name."""
        words = value.split() if isinstance(value, str) else [name]
        for word in words:
            end = at + len(self.look_up(word) if isinstance(value, str) else value or ())
            yield Part(name=word, start=at, end=end)
            at = end


def _are_texts(value: object) -> TypeGuard[Sequence[str]]:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def piece_of(word: str) -> tuple[str, slice]:
    """A word's span or reply, and its slice."""
    match = WORD.fullmatch(word)
    if match is None:
        return word, slice(None)
    start, end = match["start"], match["end"]
    return match["name"], slice(int(start) if start else None, int(end) if end else None)


def pieces(step: Step) -> Mapping[str, tuple[str, ...]]:
    """The spans, replies and slices of a step, by key."""
    used: dict[str, tuple[str, ...]] = {}
    for key in ("prompt", "suffix", "reply"):
        value = getattr(step, key)
        if isinstance(value, str):
            used[key] = tuple(value.split())
    for index, message in enumerate(step.messages):
        used[f"messages[{index}].content"] = tuple(PLACE.findall(message.content))
    return used


def references(step: Step) -> Mapping[str, tuple[str, ...]]:
    """The names of a step's spans and replies, by key."""
    return {key: tuple(piece_of(word)[0] for word in words) for key, words in pieces(step).items()}


Word = TypeVar("Word", int, Array)

_WORD: Final = 2**64 - 1
_STEP: Final = 0x9E3779B97F4A7C15


def mixed(value: Word) -> Word:
    """A 64-bit word that depends on every bit of the value (splitmix64)."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _WORD
    word: Word = value ^ value >> 31
    return word


def stream_of(seed: int, name: str) -> int:
    """The first value of a name's random stream."""
    start = mixed(seed & _WORD)
    for byte in name.encode():
        start = mixed((start ^ byte) + _STEP & _WORD)
    return start


def drawn(seed: int, name: str, length: int, low: int, high: int) -> list[int]:
    """`length` tokens in `[low, high)` of one name."""
    steps = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(_STEP)
    words = mixed(steps + np.uint64(stream_of(seed, name)))
    tokens: list[int] = (words % np.uint64(high - low) + np.uint64(low)).tolist()
    return tokens


def _plain_tokens(vocabulary: int, *, thinks: bool = False) -> range:
    """Tokens without a meaning for a server: no byte, no mark, no role."""
    if vocabulary <= FIRST_WORD:
        return range(vocabulary)
    return range(FIRST_WORD, min(vocabulary, THINK_MARKS[0]) if thinks else vocabulary)


def draw_spans(
    spans: Mapping[str, int | str | tuple[int, ...]],
    *,
    seed: int,
    tokenizer: ByteTokenizer,
    vocabulary: int,
    recalls: bool = False,
) -> dict[str, Tokens]:
    """The tokens of every span, drawn spans in the order of the file.

    Spans of a model that recalls facts: texts consist of its words, drawn ones of its fillers.
    """
    plain = _plain_tokens(vocabulary, thinks=tokenizer.template.thinks)
    if recalls:
        plain = range(recall.FIRST_FILLER, recall.FIRST_FILLER + len(recall.FILLERS))
    firsts: set[int] = set()
    spans_drawn: dict[str, Tokens] = {}
    for name, value in spans.items():
        if isinstance(value, str):
            spans_drawn[name] = _words(name, value) if recalls else tokenizer.encode(value)
        elif isinstance(value, int):
            tokens = drawn(seed, name, value, plain.start, plain.stop)
            while tokens[0] in firsts and len(firsts) < len(plain):
                tokens[0] = tokens[0] + 1 if tokens[0] + 1 in plain else plain.start
            firsts.add(tokens[0])
            spans_drawn[name] = as_tokens(tokens)
        else:
            spans_drawn[name] = tuple(map(Token, value))
    return spans_drawn


def _words(span: str, text: str) -> Tokens:
    try:
        return as_tokens(recall.encode(text))
    except SpecError as error:
        raise ScenarioError(f"spans.{span}: {error}") from error
