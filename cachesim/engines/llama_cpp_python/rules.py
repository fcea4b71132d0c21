"""Rules of releases, and of the llama.cpp that they vendor."""

from dataclasses import dataclass, replace
from typing import Final

from cachesim.engines.llamacpp.memory.rules import B9094, B9509, B11434, MemoryRules


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


NEWEST: Final = Rules(
    memory=replace(B11434, attention_header=8),
    reset_clears_states=True,
    states_only_continue=False,
    embeds_unified=True,
    whole_prompt_matches=True,
)
BEFORE: Final = replace(NEWEST, memory=B9509)
LEAVES_LAST: Final = replace(BEFORE, states_only_continue=True, whole_prompt_matches=False)
KEEPS_STATES: Final = replace(
    LEAVES_LAST,
    memory=B9094,
    reset_clears_states=False,
    states_only_continue=False,
    embeds_unified=False,
)
