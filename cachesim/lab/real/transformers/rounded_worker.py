"""Quantised caches that round, with their backends; imported by `script_worker` alone.

What rounding leaves of an answer is documented, so that a script's logits are compared with those
of another cache of the kind, to which each row's tokens were fed in the same pieces. Of that cache
the first layer's keys, which depend on no other layer, are compared with exact ones (`near`).
"""

import importlib
from types import SimpleNamespace
from typing import Any

Real = Any  # modules and objects of the release: known only when it runs

SMALL = {"q_group_size": 4, "residual_length": 4}  # divides each size of a tiny head
SETTINGS: dict[str, dict[str, int]] = {
    "quanto": {"nbits": 4} | SMALL,
    # The axes that the documentation recommends; with fewer bits HQQ stops its search for scales
    # by the error of all rows, so that a row's keys depend on the others.
    "hqq": {"nbits": 8, "axis_key": 1, "axis_value": 1} | SMALL,
}
NEAR = 0.5
"""Largest distance of a rounded key from the exact one, in deviations; 4 bits round by 0.2."""


def cache(config: Real, kind: str) -> Real:
    """A cache that rounds; the library refuses windows and states."""
    utils: Any = importlib.import_module("transformers.cache_utils")
    if kind == "quanto" and utils.is_optimum_quanto_available():
        _unpack_in_python()
    return utils.QuantizedCache(kind, config, **SETTINGS[kind])


def _unpack_in_python() -> None:
    """Unpack quanto's bits without the function for a CPU, which is compiled at its first use."""
    torch: Any = importlib.import_module("torch")
    extensions: Any = importlib.import_module("optimum.quanto.library.extensions")

    def unpack(packed: Real, bits: int) -> Real:
        return torch.cat([(packed >> at) & (2**bits - 1) for at in range(0, 8, bits)])

    extensions.get_extension("quanto_cpp")._lib = SimpleNamespace(unpack=unpack)


class Replay:
    """The same tokens, fed to another cache of the kind in the same pieces."""

    def __init__(self, play: Real, kind: str) -> None:
        self.play, self.kind = play, kind
        self.ends: list[int] = []  # of the pieces

    def cold(self, count: int) -> Real:
        """Logits of the last tokens, which are one piece."""
        end = self.play.widths
        kept = [each for each in self.ends if each < end - count]  # the others were cropped
        self.ends = [*kept, *([end - count] if end > count else []), end]
        mine, self.play.cache = self.play.cache, self.play.new(self.kind)
        try:
            start, ids = 0, importlib.import_module("torch").cat(self.play.rows)
            for each in self.ends:
                logits = self.play._call(ids[:, start:each], each)
                start = each
        finally:
            self.play.cache = mine
        return logits

    def is_near(self) -> bool:
        """True if the first layer's keys are the exact ones, but for the rounding."""
        exact = self.play.new("dynamic")
        ids = importlib.import_module("torch").cat(self.play.rows)
        self.play.model(ids, use_cache=True, **{self.play.key: exact})
        [layer, own] = exact.layers[0], self.play.cache.layers[0]
        keys, _ = own.update(layer.keys[..., :0, :], layer.values[..., :0, :])
        far = (keys.double() - layer.keys.double()).abs().nan_to_num(1e9).max()
        return bool(far < NEAR * layer.keys.double().std())
