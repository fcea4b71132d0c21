"""One room per server family, all behind `Engine` and events; loaded when it is first used."""

from typing import TYPE_CHECKING, Final

from cachesim.lazily import lazily

if TYPE_CHECKING:
    from cachesim.engines.base import ByteStore, Engine, Message, Reply, Request, Ticket
    from cachesim.engines.events import Event, Loss
    from cachesim.engines.profile import Profile

HOMES: Final = {
    "ByteStore": "base",
    "Engine": "base",
    "Event": "events",
    "Loss": "events",
    "Message": "base",
    "Profile": "profile",
    "Reply": "base",
    "Request": "base",
    "Ticket": "base",
}
"""In which module each public name is defined."""


__getattr__ = lazily(__name__, HOMES)

__all__ = [
    "ByteStore",
    "Engine",
    "Event",
    "Loss",
    "Message",
    "Profile",
    "Reply",
    "Request",
    "Ticket",
]
