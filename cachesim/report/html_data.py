"""The data of a page: equal parts written once, and less of it where there is too much.

Packed it reads {"pool": [part, ...], "document": ...}, and {"$": 3} stands for pool[3]. A mapping
of the document's own that has such a key is written {"$": {...}}.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from cachesim.typed import Json

SMALL: Final = 24
"""Parts below this many characters are not worth a name."""


class Packer:
    """Gives equal values equal numbers, then writes those that come twice only once."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._values: list[Any] = []
        self._sizes: list[int] = []
        self._uses: Counter[int] = Counter()
        self._pool: list[Any] = []
        self._places: dict[int, int] = {}

    def number(self, value: object) -> int:
        """The number of a value; uses are counted once for each different holder."""
        if isinstance(value, Mapping):
            parts = tuple((str(key), self.number(each)) for key, each in value.items())
            inner = [n for _, n in parts]
            size = 2 + sum(len(key) + 4 + self._sizes[n] for key, n in parts)
            return self._known(("mapping", parts), dict(parts), inner, size)
        if isinstance(value, list | tuple):
            inner = [self.number(each) for each in value]
            size = 2 + sum(1 + self._sizes[n] for n in inner)
            return self._known(("list", tuple(inner)), inner, inner, size)
        return self._known((type(value).__name__, value), value, [], len(repr(value)))

    def _known(self, key: tuple[str, object], value: object, inner: list[int], size: int) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._values)
            self._values.append((key[0], value))
            self._sizes.append(size)
            self._uses.update(inner)
        return number

    def written(self, number: int) -> Json:
        """A value, or its name where it is used more than once."""
        kind, value = self._values[number]
        if kind not in {"mapping", "list"}:
            return value
        if self._uses[number] < 2 or self._sizes[number] < SMALL:
            return self._spelled(kind, value)
        if number not in self._places:
            spelled = self._spelled(kind, value)
            self._places[number] = len(self._pool)
            self._pool.append(spelled)
        return {"$": self._places[number]}

    def _spelled(self, kind: str, value: Json) -> Json:
        if kind == "list":
            return [self.written(each) for each in value]
        mapping = {key: self.written(each) for key, each in value.items()}
        return {"$": mapping} if "$" in mapping else mapping

    def pack(self, value: object) -> dict[str, Any]:
        """The whole."""
        document = self.written(self.number(value))
        return {"pool": self._pool, "document": document}


def packed(document: object) -> dict[str, Any]:
    """A document with every part of some size written once."""
    return Packer().pack(document)


def thinner(runs: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    """The runs, then with fewer states, then with none, at last without their prompts' tokens."""
    yield runs
    for keep in (_loud, _last, _none):
        yield [_thinned(run, keep) for run in runs]
    yield [_pictured(run) for run in runs]


def _thinned(run: Mapping[str, Any], keep: Callable[[Mapping[str, Any]], object]) -> dict[str, Any]:
    """A run whose states are those that `keep` chooses for each step."""
    if "detail" not in run:
        return dict(run)
    steps = [{**each, "detail": {**each["detail"], "at": keep(each)}} for each in run["steps"]]
    wanted = {n for each in steps for n in (*each["detail"]["at"], each["detail"]["before"])}
    states = [state if n in wanted else None for n, state in enumerate(run["detail"]["states"])]
    if keep is _none:
        states = []
    thin = {**run, "steps": steps, "detail": {**run["detail"], "states": states}}
    if "picture" in run:
        rows = zip(run["picture"]["states"], states, strict=False)
        drawn = [None if state is None else each for each, state in rows]
        thin["picture"] = {**run["picture"], "states": drawn}
    return thin


def _pictured(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run with the last picture of each step: a prompt of 50,000 tokens alone fills a page."""
    thin = _thinned(run, _last)
    if "detail" not in thin:
        return thin
    steps = [{**each, "detail": {**each["detail"], "prompt": []}} for each in thin["steps"]]
    return {**thin, "steps": steps, "detail": {**thin["detail"], "states": []}}


def _loud(step: Mapping[str, Any]) -> list[int]:
    """No state of its own for a quiet event, unless it is the last one."""
    at: list[int] = list(step["detail"]["at"])
    before = step["detail"]["before"]
    for index, event in enumerate(step["events"][:-1]):
        if event["tone"] == "quiet":
            at[index] = at[index - 1] if index else before
    return at


def _last(step: Mapping[str, Any]) -> list[int]:
    at = step["detail"]["at"]
    return [at[-1]] * len(at) if at else []


def _none(step: Mapping[str, Any]) -> list[int]:
    return [-1] * len(step["detail"]["at"])
