"""The events of each engine, from their classes."""

from collections.abc import Iterator

from cachesim.engines.events import Event
from pages.source import Class, classes, folders
from pages.tables import code, plain, table

INTRODUCTION = """\
# Events

Events are an engine's only output besides replies. Each is one thing that happened, as a small
value; the lines of the real servers' logs that carry numbers are among them, with the same
numbers. In the JSON output every event has its name under `event`, `slot` and `task` (-1 where
there is none), the fields in braces, and the others.
"""


def page() -> str:
    """All engines."""
    return "\n\n".join([INTRODUCTION, *_engines()]) + "\n"


def _engines() -> Iterator[str]:
    for engine, folder in folders().items():
        files = sorted(folder.rglob("*.py"))
        known = [each for path in files for each in classes(path)]
        yield f"## {engine}"
        rows = [_row(each, known) for each in known if _is_event(each, known)]
        yield table(("event", "meaning", "other fields"), rows)


def _is_event(one: Class, known: list[Class]) -> bool:
    """Derived from Event, itself or through another; a mere base class is none."""
    names = {each.name: each for each in known}
    if any(one.name in each.bases for each in known):
        return False
    while one.bases and one.bases[0] in names:
        one = names[one.bases[0]]
    return "Event" in one.bases


def _row(one: Class, known: list[Class]) -> tuple[str, str, str]:
    inherited = [each for each in known if each.name in one.bases]
    fields = [field for each in (*inherited, one) for field in each.fields]
    about = one.about.split("\n\n")[0]
    others = [field for field in fields if field.about or f"{{{field.name}}}" not in about]
    words = ", ".join(f"{code(other.name)} {other.about}".strip() for other in others)
    return code(_name(one.name)), plain(about), words


def _name(class_name: str) -> str:
    return type(class_name, (Event,), {}).name()
