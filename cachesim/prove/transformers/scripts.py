"""Scripts of cache operations, drawn from a seed by the name of the operation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final, TypeAlias

Step: TypeAlias = list[Any]
"""A step as `script_worker` reads it: its name and arguments."""

Script: TypeAlias = list[Step]

WINDOW: Final = 8
"""Tokens of the models' windows and chunks."""


def _feeds(rng: Random, least: int, most: int, pieces: int) -> Script:
    return [["feed", rng.randint(least, most)] for _ in range(pieces)]


def _prefill(rng: Random) -> Script:
    return _feeds(rng, 2 * WINDOW - 2, 3 * WINDOW, 1)


def _order(rng: Random, rows: int) -> list[int]:
    order = rng.sample(range(rows), rows)
    return order if order != sorted(order) else order[::-1]


def _batch(rng: Random, step: Step) -> Script:
    return [["rows", 3], *_prefill(rng), step, *_feeds(rng, 1, 6, 2)]


def _crops(rng: Random, count: int, *, recorded: bool) -> Script:
    """Feed and crop in turn; without recording only full attention can go back."""
    script: Script = [*_prefill(rng), *([["record"]] if recorded else [])]
    for _ in range(count):
        size = rng.randint(3, 6)
        script += [["feed", size], ["crop", -rng.randint(1, size - 1)]]
    return [*script, *_feeds(rng, 1, 5, 2)]


def _turns(rng: Random, further: int) -> Script:
    return [["generate", rng.randint(12, 16), "plain"], ["generate", further, "plain"]]


def _quantised(kind: str, step: Step, rng: Random, ends: Sequence[Step] = ()) -> Script:
    """Prefill, two tokens that `grouped` does not quantise yet, and a step."""
    script: Script = [["cache", kind], ["rows", 3], *_prefill(rng), ["feed", 2]]
    return [*script, *([step] if step else []), *_feeds(rng, 1, 6, 2), *ends]


_QUANTISED_STEPS: Final[Mapping[str, Step]] = {
    "": [],
    "-crop": ["crop", -1],
    "-reset": ["reset"],
    "-reorder": ["reorder", 2, 0, 1],
    "-select": ["select", 2, 0, 1],
    "-repeat": ["repeat", 2],
}

_CROSSED: Final[Script] = [["encoder", 7], ["cache", "crossed"]]

OPERATIONS: Final[Mapping[str, Callable[[Random], Script]]] = {
    "tokens": lambda rng: _feeds(rng, 1, 1, rng.randint(18, 26)),
    "prefill": lambda rng: [*_prefill(rng), *_feeds(rng, 1, 1, 8)],
    "chunks": lambda rng: _feeds(rng, 1, 2 * WINDOW, rng.randint(4, 6)),
    "static": lambda rng: [["cache", "static"], *_feeds(rng, 1, 10, 5)],
    "static-reset": lambda rng: [
        ["cache", "static"],
        *_prefill(rng),
        ["reset"],
        *_feeds(rng, 1, 10, 3),
    ],
    "static-crop": lambda rng: [["cache", "static"], *_crops(rng, 2, recorded=False)],
    "static-crop-recorded": lambda rng: [["cache", "static"], *_crops(rng, 2, recorded=True)],
    "static-reorder": lambda rng: [["cache", "static"], *_batch(rng, ["reorder", *_order(rng, 3)])],
    "offloaded": lambda rng: [["cache", "offloaded"], *_feeds(rng, 1, 10, 5)],
    **{
        f"{kind}{name}": partial(_quantised, kind, step)
        for kind in ("fp8", "grouped")
        for name, step in _QUANTISED_STEPS.items()
    },
    "crossed": lambda rng: [*_CROSSED, *_feeds(rng, 1, 10, 4)],
    "crossed-reset": lambda rng: [*_CROSSED, *_prefill(rng), ["reset"], *_feeds(rng, 1, 8, 2)],
    "crossed-crop": lambda rng: [*_CROSSED, *_prefill(rng), ["crop", -3], *_feeds(rng, 1, 8, 2)],
    "crop-short": lambda rng: [["feed", 6], ["crop", -rng.randint(1, 3)], *_feeds(rng, 3, 9, 2)],
    "crop": lambda rng: [*_prefill(rng), ["crop", -rng.randint(1, 5)], *_feeds(rng, 2, 6, 1)],
    "crop-to": lambda rng: [["feed", 20], ["crop", rng.randint(9, 17)], *_feeds(rng, 2, 6, 1)],
    "crop-recorded": lambda rng: _crops(rng, rng.randint(1, 3), recorded=True),
    "crop-recorded-first": lambda rng: [["record"], *_crops(rng, 2, recorded=False)],
    "crop-twice": lambda _: [["record"], ["feed", 20], ["crop", -2], ["crop", -2], ["feed", 4]],
    "crop-deep": lambda rng: [["record"], *_prefill(rng), ["feed", 3], ["crop", -6], ["feed", 5]],
    "crop-refused": lambda rng: [*_prefill(rng), ["try", -rng.randint(1, 5)], ["feed", 4]],
    "crop-all": lambda rng: [["record"], ["feed", 14], ["crop", -14], *_feeds(rng, 5, 9, 2)],
    "reset": lambda rng: [*_prefill(rng), ["reset"], *_feeds(rng, 3, 9, 2)],
    "fork": lambda rng: [*_prefill(rng), ["fork"], *_feeds(rng, 1, 6, 2)],
    "conversations": lambda rng: [*_prefill(rng), *[["other", 9], ["feed", 1]] * 3],
    "reorder": lambda rng: _batch(rng, ["reorder", *_order(rng, 3)]),
    "select": lambda rng: _batch(rng, ["select", *_order(rng, 3)]),
    "select-fewer": lambda rng: _batch(rng, ["select", *_order(rng, 3)[:2]]),
    "repeat": lambda rng: [*_prefill(rng), ["repeat", 3], *_feeds(rng, 1, 6, 2)],
    "mask-tokens": lambda rng: [["mask"], *_prefill(rng), *_feeds(rng, 1, 1, 4)],
    "pad": lambda _: [["pad", 14, 9, 5]],
    "pad-tokens": lambda _: [["pad", 14, 9, 5], ["feed", 1], ["feed", 1], ["feed", 1]],
    "pad-chunk": lambda rng: [["pad", 14, 9, 5], *_feeds(rng, 2, 5, 2)],
    "pad-right": lambda _: [["right", 14, 9, 5]],
    "pad-right-tokens": lambda _: [["right", 14, 9, 5], ["feed", 1], ["feed", 1], ["feed", 1]],
    "pad-reorder": lambda rng: [["pad", 14, 9, 5], ["reorder", *_order(rng, 3)], ["feed", 1]],
    "generate": lambda rng: [["generate", rng.randint(12, 16), "plain"]],
    "generate-batch": lambda _: [["batch", 14, 9, 5]],
    "generate-turn": lambda rng: _turns(rng, rng.randint(2, 6)),
    "generate-cached": lambda rng: _turns(rng, 0),
    "generate-shorter": lambda rng: _turns(rng, -rng.randint(1, 4)),
    "generate-chunks": lambda rng: [["generate", rng.randint(12, 16), "chunks"]],
    "generate-static": lambda rng: [["generate", rng.randint(12, 16), "static"]],
    "generate-offloaded": lambda rng: [["generate", rng.randint(12, 16), "offloaded"]],
    "generate-mtp": lambda rng: [["generate", rng.randint(12, 16), "mtp"]],
    "generate-lookup": lambda rng: [["generate", rng.randint(12, 16), "lookup"]],
    "generate-assisted": lambda rng: [["generate", rng.randint(12, 16), "assisted"]],
    "generate-beams": lambda rng: [["generate", rng.randint(12, 16), "beams"]],
    "paged": lambda rng: [["paged", rng.randint(18, 26), *(rng.randint(9, 18) for _ in "ab"), 26]],
    "paged-together": lambda rng: [["packed", *(rng.randint(9, 26) for _ in range(4))]],
}

ROUNDED: Final[Mapping[str, Callable[[Random], Script]]] = {
    f"{kind}{name}": partial(_quantised, kind, step, ends=[["near"]])
    for kind in ("quanto", "hqq")
    for name, step in _QUANTISED_STEPS.items()
}
"""Operations on quantised caches of further packages; in the end keys are compared."""

NAMED: Final[Mapping[str, Callable[[Random], Script]]] = {
    **ROUNDED,
    "paged-offloaded": lambda rng: [["offloaded", *(rng.randint(11, 14) for _ in range(6))]],
}
"""Operations that are run only by name: their packages are not in each environment.

Offloading needs pinned memory, and thus an accelerator; here it is run without the pin.
"""


def drawn(operation: str, family: str, seed: int) -> Script:
    """The script of an operation on a family."""
    draw = OPERATIONS.get(operation) or NAMED[operation]
    return draw(Random(f"{seed} {family} {operation}"))


def smaller(script: Script) -> Iterator[Script]:
    """Simpler scripts: a step fewer, or a number nearer to 0."""
    for at in range(len(script)):
        if len(script) > 1:
            yield script[:at] + script[at + 1 :]
    for at, (name, *given) in enumerate(script):
        if name in ("feed", "crop", "generate"):
            for less in dict.fromkeys((given[0] // 2, given[0] - (1 if given[0] > 0 else -1))):
                if less and abs(less) < abs(given[0]):
                    yield [*script[:at], [name, less, *given[1:]], *script[at + 1 :]]


def shrunk(script: Script, fails: Callable[[Script], bool], tries: int = 60) -> Script:
    """The smallest script that still fails."""
    found = True
    while found:
        found = False
        for candidate in smaller(script):
            if not tries:
                return script
            tries -= 1
            if fails(candidate):
                script, found = candidate, True
                break
    return script


def text_of(script: Sequence[Step]) -> str:
    """A script in one line."""
    return ", ".join(" ".join(map(str, step)) for step in script)
