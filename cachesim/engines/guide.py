"""Further facts about a profile, by which a guided search draws its workloads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Images: TypeAlias = Literal["none", "few", "some", "all"]
"""The requests that may have images: none, some, or none without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """Draws of a guided search for a profile, beside the flags of its release."""

    sizes: tuple[int, ...] = ()  # lengths at which its rules branch
    images: Images = "none"
    fields: tuple[Mapping[str, Any], ...] = ()  # of requests, one at a time
    stop_words: str = ""  # the field of texts that end a reply
    templates: tuple[str, ...] = ()  # for chats, beside the default
    models: tuple[Mapping[str, Any], ...] = ()  # flags of a server of which two are asked
    flags: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # values that no table has
