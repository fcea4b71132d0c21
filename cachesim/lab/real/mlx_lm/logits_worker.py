"""Inside a real release's environment: logits of mlx-lm's own models with given weights.

One line of JSON in, one line out: the module's name, the arguments of its model, a file with the
tensors (`.npz`), prompts with the pieces they are to be fed in, and padded batches; the logits of
every token, and of every token that a batch decodes, come out.
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


def logits(order: Json) -> Json:
    """Per prompt, the logits of each of its tokens; per batch, those of each step and row."""
    mx = importlib.import_module("mlx.core")
    module = importlib.import_module(f"mlx_lm.models.{order['module']}")
    caches = importlib.import_module("mlx_lm.models.cache")
    model = module.Model(module.ModelArgs.from_dict(order["arguments"]))
    model.load_weights(list(mx.load(order["weights"]).items()), strict=True)
    model.eval()
    mx.eval(model.parameters())
    return {
        "prompts": [_prompt(mx, caches, model, each) for each in order["prompts"]],
        "batches": [_batch_or_error(mx, caches, model, each) for each in order["batches"]],
    }


def _prompt(mx: Real, caches: Real, model: Real, pieces: list[list[int]]) -> list[list[float]]:
    cache = caches.make_prompt_cache(model)
    rows: list[list[float]] = []
    for piece in pieces:
        out = model(mx.array([piece]), cache=cache)[0].astype(mx.float32)
        mx.eval(out, [layer.state for layer in cache])
        rows += out.tolist()
    return rows


def _batch_or_error(mx: Real, caches: Real, model: Real, order: Json) -> Json:
    try:
        return _batch(mx, caches, model, order)
    except Exception as error:
        return type(error).__name__


def _batch(mx: Real, caches: Real, model: Real, order: Json) -> Json:
    """Sequences with a past of their own, fed as one padded batch, then decoded together.

    Padded as the release's generator does it: fresh ones on the left before #1072, others on the
    right.
    """
    generate = importlib.import_module("mlx_lm.generate")
    single = [caches.make_prompt_cache(model) for _ in order["past"]]
    for past, cache in zip(order["past"], single, strict=True):
        if past:
            model(mx.array([past]), cache=cache)
            mx.eval([layer.state for layer in cache])
    calls = [(mx.array(columns), lengths, padding) for columns, lengths, padding in order["calls"]]
    if order["left_padding"] is not None:
        make = generate._make_cache
        wants = make.__code__.co_varnames[: make.__code__.co_argcount]
        more = (None,) if len(wants) > 2 else ()
        batch = make(model, order["left_padding"], *more)
    else:
        batch = generate._merge_caches(single)
    for columns, lengths, padding in calls:
        if lengths is not None:
            for layer in batch:
                layer.prepare(lengths=lengths, right_padding=padding)
        for start in range(0, columns.shape[1], order["step"]):
            model(columns[:, start : start + order["step"]], cache=batch)
        if lengths is not None or order["left_padding"] is not None:
            for layer in batch:
                layer.finalize()
    rows = []
    for row in order["said"]:
        out = model(mx.array(row)[:, None], cache=batch)[:, -1].astype(mx.float32)
        mx.eval(out)
        rows.append(out.tolist())
    return rows


if __name__ == "__main__":
    main()
