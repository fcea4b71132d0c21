"""llama.cpp: memory, slots, prompt cache, checkpoints, companion."""

from cachesim.engines.base import Engine
from cachesim.engines.llamacpp.server import LlamaCpp

Engine.families["llama.cpp"] = LlamaCpp

__all__ = ["LlamaCpp"]
