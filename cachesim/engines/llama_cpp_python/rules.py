"""Rules of releases, of the llama.cpp that they vendor, and of other servers over it."""

from dataclasses import dataclass, replace
from typing import Final

from cachesim.engines.llamacpp.memory.rules import B9094, B9509, B11434, MemoryRules


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerRules:
    """Rules of Ollama's caches (`kvcache`)."""

    memory: int = 0
    """Tokens that window layers keep; one window at least (`NewSWAMemCache`)."""

    llama: bool = False
    """llama.cpp's memory decides, and each batch waits for its tokens (`runner/llamarunner`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KoboldRules:
    """Differences of KoboldCpp's releases."""

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


KOBOLD: Final = KoboldRules()
KOBOLD_1_104: Final = KoboldRules(checkpoints=False, small_windows=False, windows_and_states=False)
KOBOLD_1_99: Final = KoboldRules(
    architectures=frozenset({"mamba", "mamba2", "nemotron_h", "jamba"}),
    replays_last=False,
    smartcache=False,
    checkpoints=False,
    least=0,
    small_windows=False,
    slots=3,
    windows_and_states=False,
)


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

    server: RunnerRules | KoboldRules | None = None
    """Another server's reuse rules: Ollama's own runner, or KoboldCpp."""


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
