"""One room per server family, all behind `Engine` and events; loaded when it is first used."""

from typing import TYPE_CHECKING, Final

from cachesim.engines.family import FAMILIES, register
from cachesim.engines.ik_llama.family import FAMILY as IK_LLAMA_CPP
from cachesim.engines.llamacpp.family import FAMILY as LLAMA_CPP
from cachesim.engines.marconi.family import FAMILY as MARCONI
from cachesim.engines.mlx_lm.family import FAMILY as MLX_LM
from cachesim.engines.sglang.family import FAMILY as SGLANG
from cachesim.engines.vllm.family import FAMILY as VLLM
from cachesim.lazily import lazily

if TYPE_CHECKING:
    from cachesim.engines.base import ByteStore, Engine, Reply, Request, Ticket
    from cachesim.engines.causes import Cause, Loss
    from cachesim.engines.chat_templates import Message
    from cachesim.engines.events import Event
    from cachesim.engines.profile import Profile

HOMES: Final = {
    "ByteStore": "base",
    "Cause": "causes",
    "Engine": "base",
    "Event": "events",
    "Loss": "causes",
    "Message": "chat_templates",
    "Profile": "profile",
    "Reply": "base",
    "Request": "base",
    "Ticket": "base",
}
"""In which module each public name is defined."""


__getattr__ = lazily(__name__, HOMES)

for each in (LLAMA_CPP, IK_LLAMA_CPP, MLX_LM, VLLM, SGLANG, MARCONI):
    register(each)

__all__ = [
    "FAMILIES",
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
