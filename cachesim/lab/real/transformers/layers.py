"""A release's own `DynamicCache` beside the simulated one, operation by operation.

Both get the same tokens, crops, reorders and selections. After each operation what every layer
returns, holds, counts and says of itself must be the same, as the kind of an error.
"""

from pathlib import Path
from random import Random
from typing import Final

from cachesim.engines.transformers.dynamic import FOLD, KERNEL, KINDS, MODULUS, DynamicCache
from cachesim.engines.transformers.family import FAMILY
from cachesim.lab.real.agreement import Agreement, first_difference
from cachesim.lab.real.playing import watched
from cachesim.lab.real.worker_process import JsonProcess
from cachesim.typed import Json

WORKER: Final = Path(__file__).with_name("layers_worker.py")
ROWS: Final = ("reorder", "select", "repeat")


def compare_layers(python: Path, release: str, seed: int, scripts: int) -> int:
    """Compare scripts; the exit status."""
    title = f"transformers {release}: layers of its own DynamicCache, seed {seed}"
    agreement = Agreement(title=title, kinds="layers")
    with JsonProcess("transformers", [str(python), "-W", "ignore", str(WORKER)]) as process:
        for number in watched(range(scripts)):
            script = draw(seed, number)
            real, simulated = process.order(script), played(script, release)
            found = first_difference(real, simulated)
            agreement.add(
                "+".join(sorted(set(script["kinds"]))) if len(script["kinds"]) == 1 else "several",
                number,
                found,
                scripts=1,
                operations=len(real),
                errors=sum(isinstance(each[0], str) for each in real),
                agreeing=found is None,
            )
    return agreement.show()


def draw(seed: int, number: int) -> Json:
    """Layers of one kind or of several, and operations on a batch."""
    rng = Random(f"layers {seed}/{number}")
    names = list(KINDS)
    kinds = [names[number % len(names)]] if number % 3 else rng.choices(names, k=3)
    alone = {"conv", "linear_attention"}.intersection(kinds)  # which refuse to select
    moves = ("reorder", "reorder") if alone and rng.random() < 0.8 else ROWS
    window = rng.choice((3, 5, 8))
    rows, steps = rng.choice((1, 2, 3)), []
    token = iter(range(1, 1 << 20))
    for _ in range(rng.randint(4, 16)):
        name = rng.choice(("feed", "feed", "feed", "crop", "crop", "record", *moves, "reset"))
        order = [rng.randrange(rows) for _ in range(rng.choice((rows, rng.randint(1, 4))))]
        given: Json = None
        if name == "feed":
            count = rng.choice((1, 1, 2, 3, window, 2 * window))
            given = [[next(token) for _ in range(count)] for _ in range(rows)]
        elif name == "crop":
            given = rng.choice((-1, -1, -2, -3, -window, -rng.randint(0, 3 * window), 0, 2, 5))
        elif name in ("reorder", "select"):
            given, rows = order, len(order)
        elif name == "repeat":
            given = rng.choice((1, 2))
            rows *= given
        elif name == "reset":
            rows = rng.choice((rows, rows, 1, 2))
        steps.append([name, given])
    return {
        "kinds": kinds,
        "window": window,
        "kernel": KERNEL,
        "fold": FOLD,
        "modulus": MODULUS,
        "steps": steps,
    }


def played(script: Json, release: str) -> list[Json]:
    """Return value of each step on the simulated cache, with the layers after it."""
    rules = FAMILY.release(release).rules.layers
    cache = DynamicCache(rules, script["kinds"], script["window"])
    found: list[Json] = []
    for name, given in script["steps"]:
        result: Json = None
        try:
            if name == "feed":
                result = cache.feed(given)
            else:
                cache.call(name, *([] if given is None else [given]))
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            result = type(error).__name__
        found.append([result, cache.content()])
    return found
