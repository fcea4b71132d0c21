"""One room per server family, all behind `Engine` and events."""

from cachesim.engines import (  # each room registers its family when it is imported
    ik_llama,
    llamacpp,
    mlx_lm,
)
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
    "ik_llama",
    "llamacpp",
    "mlx_lm",
]
