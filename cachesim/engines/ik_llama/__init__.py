"""ik_llama.cpp: the same ground as its parent family, by rules of its own."""

from cachesim.engines.ik_llama.server import IkLlama

__all__ = ["IkLlama"]
