"""The server's flags: upstream's names, the release's defaults for a server with one slot."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeAlias

from cachesim.engines.chat_templates import TEMPLATES
from cachesim.errors import OptionError

SpecType: TypeAlias = Literal["none", "draft-mtp", "draft-simple"]

CONTEXT_STEP: Final = 256
"""Contexts are rounded up to multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a server was started; the defaults are those of `-np 1` (an automatic `-np` is -1)."""

    parallel: int = 1
    kv_unified: bool = False
    kv_unified_per_slot: int = 0
    ctx_size: int = 4096
    batch_size: int = 2048
    ubatch_size: int = 512
    cache_prompt: bool = True
    cache_reuse: int = 0
    cache_ram: int = 8192
    cache_idle_slots: bool = True
    ctx_checkpoints: int = 32
    checkpoint_min_step: int = 256
    checkpoint_every_nt: int = 8192
    slot_prompt_similarity: float = 0.1
    swa_full: bool = False
    context_shift: bool = False
    cont_batching: bool = True
    keep: int = 0
    predict: int = -1
    ignore_eos: bool = True  # workloads are played with it; the toy vocabulary ends at 2 and 260
    chat_template: str = "chatml"
    spec_type: SpecType = "none"
    spec_draft_n_max: int = 3
    spec_draft_n_min: int = 0

    @property
    def n_parallel(self) -> int:
        """How many slots: an automatic number is four."""
        return 4 if self.parallel < 0 else self.parallel

    @property
    def unified(self) -> bool:
        """One pool of cells for all slots; an automatic number of slots forces it on."""
        return self.kv_unified or self.parallel < 0

    @property
    def n_batch(self) -> int:
        """Tokens per decode call: at most the context as it was asked for."""
        return min(self.ctx_size, self.batch_size)

    @property
    def n_ubatch(self) -> int:
        """Tokens that go through the network at once."""
        return min(self.n_batch, self.ubatch_size or self.n_batch)

    @property
    def n_ctx_seq(self) -> int:
        """Cells that one sequence can use, before any cap on the slot."""
        whole = _round_up(self.ctx_size)
        return whole if self.unified else _round_up(whole // self.n_parallel)

    @property
    def n_ctx(self) -> int:
        """The whole context; rounding up per slot can make it larger than what was asked for."""
        return self.n_ctx_seq if self.unified else self.n_ctx_seq * self.n_parallel

    @property
    def n_ctx_slot(self) -> int:
        """The context that one slot may fill."""
        cap = self.kv_unified_per_slot
        return min(self.n_ctx_seq, cap) if cap > 0 else self.n_ctx_seq


def _round_up(count: int) -> int:
    return -(-count // CONTEXT_STEP) * CONTEXT_STEP


_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "parallel": (-1, 256),
    "kv_unified_per_slot": (0, 1 << 24),
    "ctx_size": (1, 1 << 24),
    "batch_size": (1, 1 << 24),
    "ubatch_size": (0, 1 << 24),
    "cache_reuse": (0, 1 << 24),
    "cache_ram": (-1, 1 << 24),
    "ctx_checkpoints": (0, 1 << 16),
    "checkpoint_min_step": (0, 1 << 24),
    "checkpoint_every_nt": (-1, 1 << 24),
    "keep": (-1, 1 << 24),
    "predict": (-1, 1 << 24),
    "spec_draft_n_max": (0, 64),
    "spec_draft_n_min": (0, 64),
}

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "chat_template": tuple(TEMPLATES),
    "spec_type": ("none", "draft-mtp", "draft-simple"),
}

_KNOWN: Final = {each.name: each.default for each in fields(Options)}


def read_options(
    given: Mapping[str, Any],
    *,
    release: str,
    defaults: Mapping[str, Any],
    had_by: Mapping[str, tuple[str, ...]],
) -> Options:
    """Check what was handed in against what the release has, and fill in its defaults.

    `had_by` names, for every option that not all releases have, those that have it.
    """
    for name, value in given.items():
        check_name(name, release, had_by)
        _check_value(name, value)
    options = Options(**(dict(defaults) | dict(given)))
    if options.parallel == 0:
        msg = "option 'parallel' is 0; write a number of slots, or -1 for the automatic four"
        raise OptionError(msg)
    return options


def check_name(name: str, release: str, had_by: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse an option that does not exist, or not in this release."""
    if name not in _KNOWN and name not in had_by:
        near = get_close_matches(name.replace("-", "_").lstrip("_"), _KNOWN, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(_KNOWN))}"
        msg = f"llama.cpp@{release} has no option {name!r}; {hint}"
        raise OptionError(msg)
    if name in had_by and release not in had_by[name]:
        msg = (
            f"llama.cpp@{release} has no option {name!r}; the releases that have it are "
            f"{', '.join(had_by[name])}"
        )
        raise OptionError(msg)


def _check_value(name: str, value: Any) -> None:  # noqa: ANN401 - whatever a file holds
    default = _KNOWN[name]
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise OptionError(_wrong(name, value, "true or false"))
    elif isinstance(default, int):
        low, high = _RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise OptionError(_wrong(name, value, f"a whole number from {low} to {high}"))
    elif isinstance(default, float):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise OptionError(_wrong(name, value, "a number from 0 to 1"))
    elif value not in _CHOICES[name]:
        raise OptionError(_wrong(name, value, "one of " + ", ".join(_CHOICES[name])))


def _wrong(name: str, value: object, want: str) -> str:
    return f"option {name!r} is {value!r}; write {want}"
