"""Limits in bytes: the flags that set them, and the sizes they count.

    a trace, 32 tokens as one    | 32 | 32 | 32 | 9 |      4 tokens as played
    cache_ram counts of it       4 x the small network's bytes of a token, or
                                 4 x 32 x those of the user's model

Without the user's sizes a limit meant for a real model is hardly ever reached: a small network's
token takes a few hundred bytes, and stands for many tokens of the trace.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cachesim.engines.family import Profile, family_of
from cachesim.engines.held import sizes_of
from cachesim.engines.option import Option
from cachesim.engines.words import counted
from cachesim.errors import SpecError
from cachesim.lab.logs.sizes import sizes_of_gguf
from cachesim.model.presets import PRESETS
from cachesim.model.spec import RECURRENT_KINDS, ModelSpec, Sizes

BYTES: Final[Mapping[str, int]] = {"bytes": 1, "MiB": 1 << 20, "GB": 10**9}
"""Units of flags that limit bytes."""

KINDS: Final = {
    "token": "layers with full attention",
    "window": "layers with a window",
    "state": "recurrent layers",
}
"""The fields of `Sizes`, and the layers that they measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes of the user's model per token of the trace, with their source."""

    sizes: Sizes
    by: str  # as --gguf model.gguf
    window: int = 0  # tokens of the trace that a window layer sees; 0: as the preset has it

    @classmethod
    def of_gguf(cls, path: Path) -> "Measured":
        """Sizes by the header of a model's file."""
        sizes, fields = sizes_of_gguf(path)
        window = fields.get(f"{fields.get('general.architecture')}.attention.sliding_window")
        length = window if isinstance(window, int) and window > 0 else 0
        return cls(sizes=sizes, by=f"--gguf {path}", window=length)

    def over(self, spec: ModelSpec, scale: int) -> ModelSpec:
        """A preset with these bytes, where `scale` tokens of the trace are replayed as one."""
        self._check(spec)
        sizes = replace(
            self.sizes, token=self.sizes.token * scale, window=self.sizes.window * scale
        )
        window = max(1, self.window // scale) if self.window and spec.window else spec.window
        return replace(spec, sizes=sizes, window=window)

    def _check(self, spec: ModelSpec) -> None:
        """Refuse a preset with other kinds of layers than the measured ones."""
        given = {name for name in KINDS if getattr(self.sizes, name)}
        wrong = sorted(given ^ kinds_of(spec))
        if not wrong:
            return
        fitting = [name for name, each in PRESETS.items() if kinds_of(each) == given]
        choice = f"--model {' or '.join(fitting)}" if fitting else "sizes of the preset's kinds"
        has = "has no" if wrong[0] in given else "has"
        but = "gives" if wrong[0] in given else "gives no"
        msg = (
            f"{self.by} {but} bytes of {KINDS[wrong[0]]}, and the preset {spec.name!r} {has} "
            f"such layers; write {choice}"
        )
        raise SpecError(msg)


def kinds_of(spec: ModelSpec) -> set[str]:
    """The fields of `Sizes` for which a model has layers."""
    layers = set(spec.layers)
    recurrent = bool(layers & set(RECURRENT_KINDS))
    found = {"token": "attention" in layers, "window": "window" in layers, "state": recurrent}
    return {name for name, has in found.items() if has}


def limits_of(profile: str, options: Mapping[str, Any]) -> dict[str, int]:
    """The byte limits of a server with these options."""
    named = Profile.parse(profile)
    family = family_of(named.engine)
    read = family.read(named, options)
    found = {}
    for each in family.table():
        value = getattr(read, each.name)
        applies = not each.needs or getattr(read, each.needs)
        if _limits(each) and applies and value is not None and value > 0:
            found[each.name] = round(value * BYTES.get(each.unit, 1))
    return found


def _limits(option: Option) -> bool:
    return option.kind == "size" or option.unit in BYTES


def bytes_of(
    profile: str, limits: Mapping[str, int], spec: ModelSpec, scale: int, measured: Measured | None
) -> dict[str, Any]:
    """Source of the counted bytes, as plain data."""
    own = family_of(Profile.parse(profile).engine).describes_model
    token, window, state = sizes_of(spec)
    found: dict[str, Any] = {
        "of": "options" if own else "given" if measured else "small network",
        "by": ", ".join(own) if own else measured.by if measured else "",
    }
    if not own:  # for a token of the trace
        found |= {"token": token / scale, "window": window / scale, "state": state}
    return {**found, "limits": dict(limits)}


def sentence_of(entry: Mapping[str, Any], scale: int) -> str:
    """Sentence on a server's limits in bytes; empty without any."""
    if not entry["limits"]:
        return ""
    flags = " and ".join(f"{name} ({size:,} bytes)" for name, size in entry["limits"].items())
    done = counted(entry["evictions"], "eviction")
    ends = f"{done} for it" if entry["evictions"] else "nothing was evicted for it"
    if entry["of"] == "options":
        unit = "a token as played" if scale == 1 else f"{scale} tokens of the trace as one"
        model = f"the bytes of the model that its options describe ({entry['by']}), {unit}"
        return f"{flags} counts {model}; {ends}"
    parts = [
        f"{entry[name]:,.10g} {what}"
        for name, what in (
            ("token", "bytes a token of the trace"),
            ("window", "bytes a token in windows"),
            ("state", "bytes a recurrent state"),
        )
        if entry[name]
    ]
    rates = ", ".join(parts)
    if entry["of"] == "given":
        return f"{flags} counts {rates}, by {entry['by']}; {ends}"
    return (
        f"{flags} counts what a small network takes, {rates}; {ends}. For the bytes of your model "
        f"write --gguf FILE or {_flags(entry)}; in a plan gguf or sizes"
    )


def _flags(entry: Mapping[str, Any]) -> str:
    return " ".join(f"--{name}-bytes N" for name in KINDS if entry[name])
