"""Small switches that put a bug back, and where the suite looks for it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Make: TypeAlias = Callable[[Any], Any]
"""From what is there to what takes its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One attribute of a module or class that is replaced."""

    owner: Any
    name: str
    make: Make

    @contextmanager
    def on(self) -> Iterator[None]:
        """With the bug in place."""
        original = self.owner.__dict__[self.name]
        setattr(self.owner, self.name, self.make(original))
        try:
            yield
        finally:
            setattr(self.owner, self.name, original)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug, put back by swaps or by a profile that has it, and where the hunt looks for it.

    `answers`: random workloads until an answer is not the cold one, or an invariant breaks.
    `records`: recorded workloads of the real engine until one count differs.
    """

    name: str
    about: str
    caught_by: Literal["answers", "records"]
    profile: str = ""
    cured: str = ""  # where the profile is the bug: the same without it
    patience: int = 400  # examples until the hunt gives up, with the mutant and without
    model: str = "hybrid"
    records: str = ""
    upstream: str = ""
    swaps: tuple[Swap, ...] = ()
    shape: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def on(self) -> Iterator[None]:
        """With all its swaps in place."""
        with ExitStack() as stack:
            for swap in self.swaps:
                stack.enter_context(swap.on())
            yield


def swap(owner: Any, name: str, make: Make) -> tuple[Swap, ...]:
    """One swap, as a mutant takes it."""
    return (Swap(owner=owner, name=name, make=make),)


def always(value: Any) -> Make:
    """Instead of a function: this answer, whatever is asked."""
    return lambda _: lambda *_args, **_kwargs: value


def wrapped(change: Callable[..., Any]) -> Make:
    """Instead of a function: `change(original, *args)`."""

    def make(original: Any) -> Any:
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return change(original, *args, **kwargs)

        return replaced

    return make


SMALL = {"longest": 60, "flags": False}
"""Workloads that are small and turn no flags: most bugs need no more."""


def answers(name: str, about: str, swaps: tuple[Swap, ...] = (), **more: Any) -> Mutant:
    """A bug that shows in answers."""
    return Mutant(
        name=name, about=about, caught_by="answers", swaps=swaps, **{"shape": SMALL, **more}
    )


def counts(name: str, about: str, swaps: tuple[Swap, ...] = (), **more: Any) -> Mutant:
    """A bug that shows in what the server reports."""
    return Mutant(name=name, about=about, caught_by="records", swaps=swaps, **more)
