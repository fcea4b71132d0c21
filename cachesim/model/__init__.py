"""Arithmetic: a small real network without caches, servers or files."""

from typing import Literal, TypeAlias

ArithmeticName: TypeAlias = Literal["float", "ring", "counts"]
"""Names of the arithmetics, here so that a parser imports them without NumPy."""
