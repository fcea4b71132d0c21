"""The events of each engine, from their classes."""

from collections.abc import Iterator

from cachesim.engines.events import Event
from pages.source import Class, classes, folders
from pages.tables import code, plain, table

INTRODUCTION = """\
# Events

An event is one thing that happened, as a small value. The lines of the real servers' logs that
carry numbers are among them, with the same numbers. In the JSON output you find each event's name
under `event`, its `slot` and `task` (-1 if there's none), its fields, and a `sentence` that says
what happened. llama.cpp's are explained here, with the fields in braces. Of the others you see the
names.
"""

IN_FULL = "llama.cpp"
"""The engine whose events are explained here; each event says in the output what happened."""


def page() -> str:
    """All engines."""
    return "\n\n".join([INTRODUCTION, *_engines()]) + "\n"


def _engines() -> Iterator[str]:
    for engine, folder in folders().items():
        files = sorted(folder.rglob("*.py"))
        known = [each for path in files for each in classes(path)]
        yield f"## {engine}"
        events = [each for each in known if _is_event(each, known)]
        if engine == IN_FULL:
            yield table(
                ("event", "meaning", "other fields"), [_row(each, known) for each in events]
            )
        else:
            yield " ".join(code(_name(each.name)) for each in events)


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
