"""Runs inside a real release's environment: logits of mlx-lm's own models with given weights.

One line of JSON in, one line out: the module's name, the arguments of its model, a file with the
tensors (`.npz`), and prompts with the pieces they are to be fed in; the logits of every token come
out.
"""

import importlib
import json
import os
import sys
from typing import Any, TypeAlias

Json: TypeAlias = Any
Real: TypeAlias = Any  # modules, classes and objects of the release: known only when it runs


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(logits(json.loads(line))) + "\n")


def logits(order: Json) -> list[list[list[float]]]:
    """Per prompt, the logits of each of its tokens."""
    mx = importlib.import_module("mlx.core")
    module = importlib.import_module(f"mlx_lm.models.{order['module']}")
    caches = importlib.import_module("mlx_lm.models.cache")
    model = module.Model(module.ModelArgs.from_dict(order["arguments"]))
    model.load_weights(list(mx.load(order["weights"]).items()), strict=True)
    model.eval()
    mx.eval(model.parameters())
    return [_prompt(mx, caches, model, each) for each in order["prompts"]]


def _prompt(mx: Real, caches: Real, model: Real, pieces: list[list[int]]) -> list[list[float]]:
    cache = caches.make_prompt_cache(model)
    rows: list[list[float]] = []
    for piece in pieces:
        out = model(mx.array([piece]), cache=cache)[0].astype(mx.float32)
        mx.eval(out, [layer.state for layer in cache])
        rows += out.tolist()
    return rows


if __name__ == "__main__":
    main()
