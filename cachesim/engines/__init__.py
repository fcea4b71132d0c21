"""A package per server family, imported at first use; `Engine` and events are the interface."""

from typing import TYPE_CHECKING, Final

from cachesim.engines.family import FAMILIES
from cachesim.lazily import lazily

if TYPE_CHECKING:
    from cachesim.engines.base import ByteStore, Engine, Reply, Request, Ticket
    from cachesim.engines.causes import Cause, Loss
    from cachesim.engines.chat import Message
    from cachesim.engines.events import Event
    from cachesim.engines.family import Profile

HOMES: Final = {
    "ByteStore": "base",
    "Cause": "causes",
    "Engine": "base",
    "Event": "events",
    "Loss": "causes",
    "Message": "chat",
    "Profile": "family",
    "Reply": "base",
    "Request": "base",
    "Ticket": "base",
}
"""Defining module of each public name."""


__getattr__ = lazily(__name__, HOMES)

PACKAGES: Final = {
    "llama.cpp": "llamacpp",
    "ik_llama.cpp": "ik_llama",
    "llama-cpp-python": "llama_cpp_python",
    "koboldcpp": "koboldcpp",
    "ollama-runner": "ollama_runner",
    "mlx-lm": "mlx_lm",
    "lm-studio": "lm_studio",
    "ollama": "ollama",
    "omlx": "omlx",
    "vllm-mlx": "vllm_mlx",
    "rapid-mlx": "rapid_mlx",
    "vllm": "vllm",
    "sglang": "sglang",
    "marconi": "marconi",
    "transformers": "transformers",
}
"""The package of each built-in engine; its `family.py` declares the rest."""

SPELLINGS: Final = {
    "llama.cpp": ("llama-server",),
    "mlx-lm": ("mlx_lm.server",),
    "lm-studio": ("mlx-engine",),
    "koboldcpp": ("Kobold",),
}
"""What else people call an engine, beside other cases and signs: `LM Studio` is `lm-studio`."""

for name, package in PACKAGES.items():
    FAMILIES.announce(name, f"{__name__}.{package}.family", *SPELLINGS.get(name, ()))

__all__ = [
    "FAMILIES", "ByteStore", "Cause", "Engine", "Event", "Loss", "Message", "Profile", "Reply",
    "Request", "Ticket",
]  # fmt: skip
