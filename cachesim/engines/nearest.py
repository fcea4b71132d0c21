"""The known name that an unknown one was meant to be, of whatever kind."""

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], *, alike: float = 0.7) -> str:
    """`did you mean 'x'?` where a known name is so near that it must have been meant."""
    near = get_close_matches(name, list(known), n=1, cutoff=alike)
    return f"did you mean {near[0]!r}?" if near else ""


def near_release(name: str, known: tuple[str, ...]) -> str:
    """The releases beside an unknown one, where both are numbered alike, else all of them."""
    neighbours = list(_beside(name, known))
    if neighbours:
        return (
            f"the nearest are {' and '.join(neighbours)}"
            if len(neighbours) > 1
            else (f"the nearest is {neighbours[0]}")
        )
    return did_you_mean(name, known) or f"there are {', '.join(known)}"


def _beside(name: str, known: tuple[str, ...]) -> Iterator[str]:
    alike = {_numbers(each): each for each in known if _form(each) == _form(name)}
    wanted = _numbers(name)
    below = [numbers for numbers in alike if numbers < wanted]
    above = [numbers for numbers in alike if numbers > wanted]
    if wanted and below:
        yield alike[max(below)]
    if wanted and above:
        yield alike[min(above)]


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(digits[:18]) for digits in re.findall(r"\d+", name))


def _form(name: str) -> str:
    return re.sub(r"\d+", "#", name)
