"""ik_llama.cpp: the same ground as its parent family, by rules of its own."""

from cachesim.engines.base import Engine
from cachesim.engines.ik_llama.server import IkLlama

Engine.families["ik_llama.cpp"] = IkLlama

__all__ = ["IkLlama"]
