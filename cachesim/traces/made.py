"""A trace that is made up on the fly: chats that grow turn by turn, as many requests as wanted.

    chat 4, turn 1   | system 2 | 17 | 18 |
    chat 9, turn 1   | system 0 | 19 |
    chat 4, turn 2   | system 2 | 17 | 18 | 20 |      what was said before, and new blocks

A few system prompts are shared, the first ones most. Only the chats that are still going on are
remembered, so a trace of any length needs the same memory.
"""

import random
from collections.abc import Iterator
from typing import Final

from cachesim.traces.asked import Asked

UNIT: Final = 512

SYSTEMS: Final = 16
"""System prompts, `1 / (n + 1)` as often the n-th."""

CHATS: Final = 400
"""Chats that go on at a time."""

TURNS: Final = 6
"""Turns of a chat on average."""

GROWTH: Final = 3
"""Blocks that a turn adds at most."""

LONGEST: Final = 240
"""Blocks after which a chat ends."""


def made_requests(count: int, seed: int = 0) -> Iterator[Asked]:
    """So many requests; the same ones for the same seed."""
    draw = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(SYSTEMS)]
    chats: list[list[int]] = []
    fresh = SYSTEMS
    for number in range(count):
        if len(chats) < CHATS:
            (system,) = draw.choices(range(SYSTEMS), weights)
            at = len(chats)
            chats.append([system])
        else:
            at = draw.randrange(CHATS)
        chat = chats[at]
        grown = draw.randint(1, GROWTH)
        chat += range(fresh, fresh + grown)
        fresh += grown
        length = UNIT * (len(chat) - 1) + draw.randint(1, UNIT)
        yield Asked(
            time=float(number), length=length, output=draw.randint(1, UNIT), blocks=tuple(chat)
        )
        if len(chat) > LONGEST or draw.random() < 1 / TURNS:
            chats[at] = chats[-1]
            chats.pop()
