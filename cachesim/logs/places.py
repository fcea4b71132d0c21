"""Where prompts diverge from what the server held, over a whole log.

request 1   [ S ... 10:31 ... ][ user ]           token 33
request 2   [ S ... 10:32 ... ][ user ][ ... ]    token 33
request 3   [ S ... 10:33 ... ][ user ][ ... ]    token 33

One place for most of what is processed is one reason for it, and no rule of the server is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachesim.logs.replay import Rebuilt
from cachesim.logs.said import held_by

FEWEST: Final = 2
"""So many requests that diverge at one token make a place."""

EITHER: Final = (
    "Either the client changes something there in every request (a date, an id, the order of "
    "tools), or these are separate conversations that begin alike. Against the first helps a "
    "client that leaves it as it was; `cachesim record` between client and server shows the words."
)
NEAR_THE_START: Final = (
    "Either the client changes something near the start in every request (a date, an id, the "
    "order of tools), or conversations take turns in one slot. `-lv 4` prints the token at which "
    "they diverge, and `cachesim record` between client and server shows the words."
)


@dataclass(frozen=True, slots=True)
class Place:
    """Requests that diverge at one token, or of which the log says only that they do early."""

    token: int | None  # None: near the start, no line says where
    requests: tuple[int, ...]
    processed: int
    sentence: str
    advice: str

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "token": self.token,
            "requests": list(self.requests),
            "processed": self.processed,
            "sentence": self.sentence,
            "advice": self.advice,
        }


def places_of(requests: Sequence[tuple[int, Rebuilt]], least: float) -> list[Place]:
    """The place at which most of what was processed begins, where there is one.

    `requests` with their numbers; `least` is the part of a prompt that chooses a slot.
    """
    whole = sum(each.lengths.processed.value or 0 for _, each in requests)
    found = [*_at_one_token(requests), *_near_the_start(requests, least)]
    return [each for each in found if each.processed * 2 >= whole > 0]


def _at_one_token(requests: Sequence[tuple[int, Rebuilt]]) -> Iterator[Place]:
    groups: dict[int, list[tuple[int, Rebuilt]]] = {}
    for number, each in requests:
        at = _diverges_at(each)
        if at is not None:
            groups.setdefault(at, []).append((number, each))
    for at, group in groups.items():
        if len(group) < FEWEST:
            continue
        after = sum((each.lengths.prompt.value or 0) - at for _, each in group)
        yield Place(
            token=at,
            requests=tuple(number for number, _ in group),
            processed=after,
            sentence=f"{len(group)} of {len(requests)} requests diverge from what was held at the "
            f"same place, token {at:,}: the {after:,} tokens from there on were processed.",
            advice=EITHER,
        )


def _diverges_at(each: Rebuilt) -> int | None:
    """The first token that is another one than what was held, where both go on."""
    at, prompt = each.common, each.lengths.prompt
    cached, held = each.lengths.cached.value, held_by(each.observed, each.common)
    if at.value is None or not at.is_sure or prompt.value is None or cached is None:
        return None
    goes_on = at.value < (prompt.value if held is None else min(held, prompt.value))
    return at.value if goes_on and each.holder != "nothing" and cached <= at.value else None


def _near_the_start(requests: Sequence[tuple[int, Rebuilt]], least: float) -> Iterator[Place]:
    group = [(number, each) for number, each in requests if _is_early(each)]
    if len(group) >= FEWEST and least > 0:
        processed = sum(each.lengths.processed.value or 0 for _, each in group)
        yield Place(
            token=None,
            requests=tuple(number for number, _ in group),
            processed=processed,
            sentence=f"{len(group)} of {len(requests)} requests match at most {least:g} of their "
            f"prompt with what a slot held, and were processed whole: {processed:,} tokens.",
            advice=NEAR_THE_START,
        )


def _is_early(each: Rebuilt) -> bool:
    early = each.observed.road == "age" and each.lengths.cached.value == 0
    return early and each.common.how == "bounded" and each.common.value == 0
