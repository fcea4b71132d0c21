"""Progress of long work: finished items, remaining items, estimated time."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cachesim.report.consoles import notes

T = TypeVar("T")


@contextmanager
def progress(
    text: str, total: float | None = None, unit: str = "", *, shown: bool = True
) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error, if that is a terminal.

    The bar takes the amount that is done, and words in place of "7 of 12 releases".
    """
    screen = notes()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=screen, transient=True, disable=not (shown and screen.is_terminal)
    ) as bar:
        task = bar.add_task(text, total=total, done="")

        def move(done: float, words: str = "") -> None:
            of = "" if total is None else f" of {total:,.0f}"
            bar.update(task, completed=done, done=words or f"{done:,.0f}{of} {unit}")

        yield move


def tracked(items: Iterable[T], total: int, text: str, unit: str) -> Iterator[T]:
    """The items, with a progress bar."""
    with progress(text, total, unit) as move:
        for number, each in enumerate(items):
            move(number)
            yield each
