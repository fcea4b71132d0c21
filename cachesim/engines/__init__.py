"""One room per server family, all behind `Engine` and events."""

from cachesim.engines.base import ByteStore, Engine, Message, Reply, Request, Ticket
from cachesim.engines.events import Event, Loss
from cachesim.engines.profile import Profile

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
