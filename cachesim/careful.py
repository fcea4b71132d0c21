"""A console that escapes control sequences in text of scenarios, logs and servers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

from cachesim.printable import printable


class CarefulConsole(Console):
    """A console for literal text: no markup, emoji, guessed colours or control characters."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, emoji=False, markup=False, **settings)
        self.push_render_hook(_Careful())


class _Careful(RenderHook):
    """Renderables with their control characters spelled out."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Spelled(renderable) for renderable in renderables]


@dataclass(frozen=True, slots=True)
class _Spelled:
    """A renderable whose text is `printable`; styles and Rich's own controls stay."""

    inner: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.inner, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
