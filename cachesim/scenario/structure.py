"""From the content of a file to a Scenario; all problems are reported at once.

cattrs walks the tables and collects every failure with its place. What is left when the wrong
parts are taken out is read once more, so that the checks of how the parts fit together can speak
in the same breath.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Final, get_args, get_origin

from cattrs import Converter
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError
from cattrs.gen import make_dict_structure_fn, override

from cachesim.scenario import limits
from cachesim.scenario.format import KEYS, LONGEST, Scenario, key_of
from cachesim.scenario.readers import Place, Reader, Wrong, found, named, nearest, short
from cachesim.typed import Value, there_is


@dataclass(frozen=True, slots=True)
class Problem:
    """A wrong value, and its place."""

    path: Place
    text: str
    about: str = ""  # the span or reply that is not there

    def __str__(self) -> str:
        where = ""
        for part in self.path:
            where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else part
        return f"{where}: {self.text}" if where else self.text


def _reader_of(annotation: object) -> Reader | None:
    if get_origin(annotation) is Annotated:
        return next((arg for arg in get_args(annotation)[1:] if hasattr(arg, "read")), None)
    return None


CONVERTER: Final = Converter(detailed_validation=True)


@CONVERTER.register_structure_hook_factory(is_dataclass)
def _structure_table(cls: type[Any], converter: Converter) -> Callable[[Any, Any], Any]:
    settings: dict[str, Any] = {
        name: override(rename=key) for (owner, name), key in KEYS.items() if owner is cls
    }
    settings["_cattrs_forbid_extra_keys"] = True
    settings["_cattrs_detailed_validation"] = True
    default = make_dict_structure_fn(cls, converter, **settings)

    def structure(value: object, _: object) -> Value:
        if not isinstance(value, Mapping):
            raise Wrong(f"must be a table, {found(value)}")
        return default(value, cls)

    return structure


def _is_list_of_tables(annotation: object) -> bool:
    return get_origin(annotation) is tuple and is_dataclass(get_args(annotation)[0])


@CONVERTER.register_structure_hook_factory(_is_list_of_tables)
def _structure_tables(annotation: object, converter: Converter) -> Callable[[Any, Any], Any]:
    inner = get_args(annotation)[0]
    tables: Any = list[inner]  # type: ignore[valid-type]
    default = converter.get_structure_hook(tables)
    longest = LONGEST[inner]

    def structure(value: object, _: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise Wrong(f"must be a list of tables, {found(value)}; its header has two brackets")
        if len(value) > longest:
            raise Wrong(f"must hold at most {longest} tables, found {len(value)}")
        return tuple(default(value, tables))

    return structure


def _is_models(annotation: object) -> bool:
    return get_origin(annotation) is Mapping and is_dataclass(get_args(annotation)[1])


@CONVERTER.register_structure_hook_factory(_is_models)
def _structure_models(annotation: object, converter: Converter) -> Callable[[Any, Any], Any]:
    tables: Any = dict[str, get_args(annotation)[1]]  # type: ignore[misc]
    default = converter.get_structure_hook(tables)
    return lambda value, _: default(named(value, limits.MODELS), tables)


@CONVERTER.register_structure_hook_factory(lambda kind: _reader_of(kind) is not None)
def _structure_with_reader(annotation: object, _: Converter) -> Callable[[Any, Any], Any]:
    reader = there_is(_reader_of(annotation))
    return lambda value, _: reader.read(value)


def _problems(error: BaseException, path: Place) -> Iterator[Problem]:
    if isinstance(error, ClassValidationError):
        within, plain = error.group_exceptions()
        for exception, note in within:
            yield from _problems(exception, (*path, key_of(error.cl, note.name)))
        for exception in plain:
            yield from _problems(exception, path)
    elif isinstance(error, IterableValidationError):
        for exception, place in error.group_exceptions()[0]:
            index = place.index  # a name in a table of tables
            yield from _problems(
                exception, (*path, index if isinstance(index, str) else int(index))
            )
    elif isinstance(error, ForbiddenExtraKeysError):
        known = [key_of(error.cl, field.name) for field in fields(error.cl)]
        for key in sorted(error.extra_fields, key=str):
            hint = nearest(key, known) or f"; known here: {', '.join(known)}"
            yield Problem((*path, str(key)), f"unknown key {short(key)}{hint}")
    elif isinstance(error, Wrong):
        yield from (Problem((*path, *place), text) for place, text in error.parts)
    else:
        yield Problem(path, str(error))


def removable(path: Place) -> Place:
    """The value whose removal corrects the problem: in a list of values the whole list."""
    path = path or ("",)
    while isinstance(path[-1], int) and path[-2:-1] not in {("step",), ("expect",), ("messages",)}:
        path = path[:-1]
    return path


def _is_too_deep(content: object) -> bool:
    level = [content]
    for _ in range(limits.DEPTH):
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return False
    return True


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return ()
    return [item for item in value if isinstance(item, Mapping | list | tuple)]


def read(mapping: Mapping[str, Any]) -> tuple[Scenario | None, list[Problem]]:
    """The scenario, with the problems of its single values.

    With problems the scenario has the valid rest of the file, for further
    checks and for nothing else.
    """
    if _is_too_deep(mapping):
        return None, [Problem((), f"a scenario's tables are nested at most {limits.DEPTH} deep")]
    try:
        return CONVERTER.structure(mapping, Scenario), []
    except Wrong as wrong:
        return None, [Problem((), f"a scenario {wrong}")]
    except ClassValidationError as error:
        problems = list(_problems(error, ()))
    try:
        content: Any = deepcopy(dict(mapping))
        for problem in problems:
            *way, last = removable(problem.path)
            table = content
            for part in way:
                table = table[part]
            if isinstance(last, int):
                table[last] = {}
            else:
                table.pop(last, None)
        return CONVERTER.structure(content, Scenario), problems
    except (ClassValidationError, Wrong, LookupError, TypeError):
        return None, problems
