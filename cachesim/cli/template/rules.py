"""Differences between releases, as data: one field each."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a release."""

    block: int = 16
