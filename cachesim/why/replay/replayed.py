"""A replayed log: each request as logged and as replayed, with its causes."""

from dataclasses import dataclass, field
from typing import Final

from cachesim.engines.tokens import Rope
from cachesim.why.infer.evidence import Lengths
from cachesim.why.infer.settings import Settings
from cachesim.why.read.observed import UNKNOWN, Known, Observed, ServerLog
from cachesim.why.replay.player import FAILED, Move, Replayed, ReplayRequest

FRESH, REPLY, BEFORE, BEFORE_REPLY = 1, 2, 3, 4
"""Texts of a request: its new part, its reply, the text before the log and its reply."""

USES: Final = 8


@dataclass(slots=True)
class Rebuilt:
    """A request: logged numbers, replay, causes."""

    observed: Observed
    lengths: Lengths
    submitted: ReplayRequest | None = None
    common: Known = UNKNOWN
    holder: str = "nothing"
    replayed: Replayed = FAILED
    shares_less: bool = False  # with what is held than the log's lines say
    assumed: int | None = None  # tokens that its slot is taken to have held, as one prompt
    is_verbose: bool = True  # the log's level prints what memory and checkpoints did
    parent: int | None = None  # the request of which it is a further completion (`n` > 1)
    stale: str | None = None  # why its answer is wrong, by its counts
    is_played: bool = True  # otherwise only the log's own lines are reported

    @property
    def is_comparable(self) -> bool:
        """True if the log has a count of a prompt that was replayed."""
        known = self.lengths.cached.value is not None and not self.is_open
        was_sent = self.submitted is not None or self.parent is not None
        return self.is_played and known and was_sent

    @property
    def is_open(self) -> bool:
        """True if the prompt's length has no upper bound, so that the replay's is a guess."""
        prompt = self.lengths.prompt
        return prompt.how == "bounded" and prompt.high is None and not self.observed.cancelled

    @property
    def is_taken_to_decline(self) -> bool:
        """True if the replay sends `cache_prompt: false` only because nothing was reused."""
        return not (self.submitted is None or self.submitted.cache_prompt or self.is_verbose)

    @property
    def agrees(self) -> bool:
        """True if the replay agrees with the log."""
        if not self.is_comparable:
            return self.submitted is not None
        own = self.replayed.began_at if self.replayed.cached is None else self.replayed.cached
        return own == self.lengths.cached.value


@dataclass(slots=True)
class Hints:
    """Facts about earlier requests, from later ones: a pass has those of the one before it."""

    marks: dict[int, set[int]] = field(default_factory=dict)  # text -> where user messages begin
    prefixes: dict[int, Rope] = field(default_factory=dict)  # request -> the prefix of its own text
    lengths: dict[int, int] = field(default_factory=dict)  # cancelled request -> its prompt's
    files: dict[int, int] = field(default_factory=dict)  # request -> whose file was read before it
    no_turn: set[int] = field(default_factory=set)  # texts that do not begin with a turn's end
    openings: dict[int, int] = field(default_factory=dict)  # text -> where its second message is


@dataclass(slots=True)
class Replay:
    """The replay of a whole log."""

    log: ServerLog
    settings: Settings
    hints: Hints = field(default_factory=Hints)
    found: Hints = field(default_factory=Hints)  # for the next pass
    requests: list[Rebuilt] = field(default_factory=list)
    invented: list[ReplayRequest] = field(default_factory=list)  # what came before the log begins
    order: list[tuple[str, int]] = field(default_factory=list)  # launch and finish, by number
    moves: list[Move] = field(default_factory=list)  # the player's: these and its turns

    @property
    def comparable(self) -> list[Rebuilt]:
        """The requests that are comparable with the log."""
        return [request for request in self.requests if request.is_comparable]

    @property
    def agreeing(self) -> int:
        """Number of agreeing requests."""
        return sum(rebuilt.agrees for rebuilt in self.comparable)

    @property
    def as_sent(self) -> int:
        """Number of agreeing requests without an assumed `cache_prompt: false`."""
        return sum(
            rebuilt.agrees and not rebuilt.is_taken_to_decline for rebuilt in self.comparable
        )


def text_of(number: int, use: int) -> int:
    """The name of a request's text."""
    return USES * (number + 1) + use


def owner_of(text: int) -> tuple[int, int]:
    """The owner of a text, and which of its texts it is."""
    return text // USES - 1, text % USES


def place_of(rope: Rope, at: int) -> tuple[int, int]:
    """The text of a token, and its place in it."""
    for text, first, last in rope.runs:
        if at < last - first:
            return text, first + at
        at -= last - first
    return 0, 0
