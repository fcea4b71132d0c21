"""Tiny models of mlx-lm's own classes, in folders that its loader reads.

Runs in a release's environment, where nothing of cachesim is.
"""

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Real: TypeAlias = Any  # modules, classes and objects of the release: known only when it runs


def write_model(folder: Path, model: Mapping[str, Any]) -> None:
    """Configuration and weights, given ones or random ones.

    The type of the model is one that only mlx-lm knows: the library of tokenizers has classes of
    its own for some real types, whatever the files of the tokenizer say.
    """
    mx = importlib.import_module("mlx.core")
    kind = f"toy_{model['module']}"
    importlib.import_module("mlx_lm.utils").MODEL_REMAPPING[kind] = model["module"]
    tensors = dict(mx.load(model["weights"])) if "weights" in model else _random(mx, model)
    (folder / "config.json").write_text(json.dumps({**model["arguments"], "model_type": kind}))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})


def _random(mx: Real, model: Mapping[str, Any]) -> dict[str, Real]:
    """Weights by which states forget slowly, so that a wrong one stays wrong."""
    module = importlib.import_module(f"mlx_lm.models.{model['module']}")
    flatten = importlib.import_module("mlx.utils").tree_flatten
    mx.random.seed(7)
    made = module.Model(module.ModelArgs.from_dict(model["arguments"]))
    for _, part in made.named_modules():
        if "A_log" in part:
            part.A_log = mx.full(part.A_log.shape, -4.0)
    mx.eval(made.parameters())
    return dict(flatten(made.parameters()))


def watch_calls(name: str, on_call: Callable[[int, int], None]) -> None:
    """Have every call of a model of this module told."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    kind: Real = module.Model
    call = getattr(kind, "unwatched", kind.__call__)

    def watched(self: Real, inputs: Real, *rest: Real, **more: Real) -> Real:
        on_call(*inputs.shape)
        return call(self, inputs, *rest, **more)

    kind.unwatched, kind.__call__ = call, watched


class Folders:
    """Models on disk, each written once."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._known: dict[str, Path] = {}

    def of(self, model: Mapping[str, Any], template: str, size: int) -> Path:
        """The folder of a model with its tokenizer."""
        words = importlib.import_module("server_tokenizer")
        name = json.dumps([model, template, size])
        if name not in self._known:
            folder = self._place / str(len(self._known))
            folder.mkdir()
            write_model(folder, model)
            words.write_tokenizer(folder, template, size)
            self._known[name] = folder
        return self._known[name]
