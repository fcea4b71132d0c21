"""One room per server family, all behind `Engine` and events; loaded when it is first used."""

from typing import TYPE_CHECKING, Final

from cachesim.lazily import lazily

if TYPE_CHECKING:
    from cachesim.engines.base import ByteStore, Engine, Message, Reply, Request, Ticket
    from cachesim.engines.causes import Cause, Loss
    from cachesim.engines.events import Event
    from cachesim.engines.profile import Profile

HOMES: Final = {
    "ByteStore": "base",
    "Cause": "causes",
    "Engine": "base",
    "Event": "events",
    "Loss": "causes",
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
    "Cause",
    "Engine",
    "Event",
    "Loss",
    "Message",
    "Profile",
    "Reply",
    "Request",
    "Ticket",
]
