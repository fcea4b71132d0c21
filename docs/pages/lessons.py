"""The lessons as pages, executed again so that every number is current."""

import re
from collections.abc import Callable
from functools import partial
from typing import Final

from cachesim.learn import Lesson, execute, page
from cachesim.learn import lessons as all_lessons
from pages.tables import linked

NAMED: Final = re.compile(r"\b(ik_llama\.cpp|llama\.cpp|mlx-lm) #\d+(?:, #\d+)*")
"""Issues as sentences name them: `llama.cpp #20225, #22384`."""


def pages() -> dict[str, Callable[[], str]]:
    """One page for each lesson, under the name of its file."""
    return {f"lessons/{lesson.file}": partial(_page, lesson) for lesson in all_lessons()}


def _page(lesson: Lesson) -> str:
    return NAMED.sub(lambda found: linked(found[0], found[1]), page(execute(lesson)))
