"""Operations on a release's own `DynamicCache`; a process of its own.

A line of JSON {"kinds", "window", "steps"} comes in; for each step what the layers return and hold,
or the error, goes out. Keys are the tokens themselves, in int64.
"""

import importlib
import json
import os
import sys
from typing import Any

Json = Any
Real = Any  # modules and objects of the release: known only when it runs

METHODS = {
    "crop": "crop",
    "reorder": "reorder_cache",
    "select": "batch_select_indices",
    "repeat": "batch_repeat_interleave",
    "reset": "reset",
    "record": "activate_past_recording",
}


class Player:
    """A cache, and what its models would compute of the tokens."""

    def __init__(self, order: Json) -> None:
        self.torch: Any = importlib.import_module("torch")
        utils: Any = importlib.import_module("transformers.cache_utils")
        kinds = utils.DYNAMIC_LAYER_TYPE_MAPPING
        self.order, self.kinds = order, order["kinds"]
        layers = [
            kinds[each](**({"sliding_window": order["window"]} if "sliding" in each else {}))
            for each in self.kinds
        ]
        self.cache = utils.DynamicCache()
        self.cache.layers, self.cache.layer_class_to_replicate = layers, None

    def step(self, name: str, given: Json) -> Json:
        """Return value of a step, with the cache after it."""
        found: Json = None
        try:
            if name == "feed":
                found = [self._feed(layer, given) for layer in range(len(self.kinds))]
            else:
                tensor = name in ("reorder", "select")
                value = [self.torch.tensor(given)] if tensor else [] if given is None else [given]
                found = getattr(self.cache, METHODS[name])(*value)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            found = type(error).__name__
        return [found, [self._content(each) for each in self.cache.layers]]

    def _feed(self, number: int, rows: Json) -> Json:
        """As a layer of a model does; what attention or a convolution is given."""
        kind, layer = self.kinds[number], self.cache.layers[number]
        tokens = self.torch.tensor(rows)
        seen: Real = None
        if kind in ("linear_attention", "conv", "hybrid", "hybrid_sliding"):
            before = layer.recurrent_states[0] if layer.has_previous_state[0] else None
            seen = self.cache.update_conv_state(
                tokens[:, None], number, conv_kernel_size=self.order["kernel"]
            )[:, 0]
            if kind in ("linear_attention", "hybrid"):
                state = self.torch.zeros(len(rows), dtype=int) if before is None else before
                if len(state) != len(rows):
                    msg = "no model computes a state of another batch"
                    raise RuntimeError(msg)
                for column in tokens.T:
                    state = (state * self.order["fold"] + column) % self.order["modulus"]
                self.cache.update_recurrent_state(state, number)
        if kind == "indexed_attention":
            self.cache.update_indexer(tokens[..., None], number)
        if kind not in ("linear_attention", "conv"):
            keys = tokens[:, None, :, None]
            seen = self.cache.update(keys, keys, number)[0][:, 0, :, 0]
        return seen.tolist()

    def _content(self, layer: Real) -> Json:
        found = {"croppable": layer.is_croppable}
        if hasattr(layer, "keys"):
            found["keys"] = None if layer.keys is None else layer.keys[:, 0, :, 0].tolist()
            found["length"] = layer.get_seq_length()
        for name, each in (("inputs", "conv_states"), ("states", "recurrent_states")):
            if hasattr(layer, each):
                value = getattr(layer, each)[0]
                rows = value if value is None or name == "states" else value[:, 0]
                found[name] = None if rows is None else rows.tolist()
        if hasattr(layer, "indexer_keys"):
            index = layer.indexer_keys
            found["index"] = None if index is None else index[..., 0].tolist()
        return found


def main() -> None:
    """Run scripts until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        player = Player(order)
        found = [player.step(name, given) for name, given in order["steps"]]
        answers.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
