"""The lessons as pages: told once more, so that every number is computed now."""

from collections.abc import Callable
from functools import partial

from cachesim.lessons import Lesson, page, told
from cachesim.lessons import lessons as all_lessons


def pages() -> dict[str, Callable[[], str]]:
    """One page for each lesson, under the name of its file."""
    return {f"lessons/{each.file}": partial(_page, each) for each in all_lessons()}


def _page(lesson: Lesson) -> str:
    return page(told(lesson))
