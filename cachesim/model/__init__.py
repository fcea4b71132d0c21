"""Arithmetic: a small network that is real. Knows nothing of caches, servers, files."""

from typing import Literal, TypeAlias

ArithmeticName: TypeAlias = Literal["float", "ring", "counts"]
"""The arithmetics; it stands here so that a parser can know their names without loading NumPy."""
