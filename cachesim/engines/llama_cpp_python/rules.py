"""Rules of releases, and of the llama.cpp that they vendor."""

from dataclasses import dataclass, replace
from typing import Final

from cachesim.engines.llamacpp.memory.rules import B11434, MemoryRules

MEMORY: Final = replace(B11434, attention_header=8)
"""Rules of the newest llama.cpp that it vendors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of a release, one field per difference."""

    memory: MemoryRules
    """Rules of the vendored llama.cpp."""

    reset_clears_states: bool
    """`reset` clears a recurrent or hybrid memory (#2108; was: the number of tokens alone)."""

    states_only_continue: bool
    """A recurrent or hybrid instance is reset unless a prompt continues it (#2108 to #2306)."""

    embeds_unified: bool
    """The sequences of an embedding instance share its cells (#2217; was: an equal part each)."""

    whole_prompt_matches: bool
    """The last token of a prompt is compared too (#2306; was: left out, and always evaluated)."""
