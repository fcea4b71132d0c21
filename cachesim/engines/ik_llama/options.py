"""The server's options under upstream's flag names, with upstream's defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeAlias, get_args

from cachesim.engines.ik_llama.rules import Rules
from cachesim.engines.profile import Profile
from cachesim.errors import OptionError

Companion: TypeAlias = Literal["none", "attn", "strict_tail", "window"]
RollbackMode: TypeAlias = Literal["auto", "per-step", "gpu-fallback", "cpu"]
Eviction: TypeAlias = Literal["fifo", "variance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a server was started with; see `rules` for the fields that only some releases have."""

    parallel: int = 1
    ctx_size: int = 4096
    batch_size: int = 2048
    ubatch_size: int = 512
    slot_prompt_similarity: float = 0.1
    cache_ram: int = 8192
    cache_ram_similarity: float = 0.5
    cache_ram_n_min: int = 0
    cache_ram_reuse_n_min: int = 0
    reasoning_tokens: str = "auto"
    ctx_checkpoints: int = 32
    ctx_checkpoints_interval: int = 512
    ctx_checkpoints_tolerance: int = 5
    ctx_checkpoints_eviction: Eviction = "fifo"
    context_shift: bool = True
    recurrent_ckpt_mode: RollbackMode = "auto"
    companion: Companion = "none"  # the memory model of the MTP companion; none: no -mtp
    companion_window: int = 128
    draft_max: int = 16
    draft_min: int = 0
    draft_p_min: float = 0.75
    chat_template: str = "chatml"  # decides which token texts open and close reasoning

    @property
    def tags(self) -> tuple[str, str] | None:
        """What opens and closes a reasoning block, or None when exclusion is off."""
        if self.reasoning_tokens == "none":
            return None
        if self.reasoning_tokens == "auto":
            return "<think>", "</think>"
        opening, _, closing = self.reasoning_tokens.partition(",")
        return opening, closing


MINIMA: Final = {
    "parallel": 1,
    "ctx_size": 1,
    "batch_size": 1,
    "ubatch_size": 1,
    "ctx_checkpoints": 0,
    "companion_window": 1,
    "draft_max": 0,
    "draft_min": 0,
}
MAXIMA: Final = {"parallel": 64, "ctx_size": 1 << 20, "batch_size": 1 << 20}
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "companion": get_args(Companion),
    "recurrent_ckpt_mode": get_args(RollbackMode),
    "ctx_checkpoints_eviction": get_args(Eviction),
}


def read_options(profile: Profile, rules: Rules, given: Mapping[str, Any]) -> Options:
    """Check what was given against what the release has; errors name the value and the remedy."""
    known = {each.name: each for each in fields(Options)}
    only_with = {
        "cache_ram_reuse_n_min": (rules.ram_reuse_n_min, "patch 1877 adds it"),
        "ctx_checkpoints_eviction": (rules.eviction == "variance", "8337e4cd3 has it"),
        "companion_window": (rules.swa_compress, "8337e4cd3 has it"),
    }
    for name, value in given.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
            msg = f"{profile} has no option {name!r}{hint}"
            raise OptionError(msg)
        has, where = only_with.get(name, (True, ""))
        if not has:
            msg = f"{profile} has no option {name!r}: {where}"
            raise OptionError(msg)
        _check(name, value, known[name].default)
    if given.get("companion") == "window" and not rules.swa_compress:
        msg = f"{profile} has no window companion: 8337e4cd3 has it (--swa-compress)"
        raise OptionError(msg)
    if given.get("companion", "none") != "none" and given.get("parallel", 1) > 1:
        msg = "a companion works with parallel = 1 only: the server refuses -mtp with more slots"
        raise OptionError(msg)
    defaults = {"ctx_checkpoints_eviction": rules.eviction}
    return Options(**{**defaults, **given})


def _check(name: str, value: object, default: object) -> None:
    kinds = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}[type(default)]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        msg = f"option {name!r} is {value!r}; write a {kinds[-1].__name__}, such as {default!r}"
        raise OptionError(msg)
    if name in CHOICES and value not in CHOICES[name]:
        msg = f"option {name!r} is {value!r}; write one of {', '.join(CHOICES[name])}"
        raise OptionError(msg)
    if isinstance(value, int | float):
        low, high = MINIMA.get(name), MAXIMA.get(name)
        if (low is not None and value < low) or (high is not None and value > high):
            msg = f"option {name!r} is {value!r}; write a number from {low} to {high or 'any'}"
            raise OptionError(msg)
