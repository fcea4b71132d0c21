"""Rules of KoboldCpp's releases, one field per difference."""

from dataclasses import dataclass

from cachesim.engines.llama_cpp_python.rules import MEMORY
from cachesim.engines.llamacpp.memory.rules import MemoryRules


@dataclass(frozen=True, slots=True, kw_only=True)
class KoboldRules:
    """Differences of KoboldCpp's releases."""

    memory: MemoryRules = MEMORY
    """Rules of the llama.cpp that it vendors."""

    architectures: frozenset[str] = frozenset()
    """Architectures that count as recurrent; empty: all with states (1.100)."""

    replays_last: bool = True
    """A continued state first evaluates the token that was sampled last (1.100)."""

    smartcache: bool = True
    """`--smartcache` exists (1.104)."""

    checkpoints: bool = True
    """States are saved within a prompt (1.110), and before a reply; was: after it."""

    least: int = 4
    """A shorter prefix in common is not kept (1.104)."""

    small_windows: bool = True
    """Window layers have few cells by default (`--noswa` since 1.114; was: `--useswa`)."""

    slots: int = 5
    """Save slots where no number is given."""

    windows_and_states: bool = True
    """Its llama.cpp has memory for windows beside states (from January 2026 on)."""
