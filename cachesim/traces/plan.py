"""A plan of a sweep: traces, servers and flags, as a TOML file.

    format = 1

    [[trace]]
    file  = "conversation_trace.jsonl"     # or: made = 100000, or made = "agents:100000"

    [[server]]
    profile = ["vllm@0.30.0", "vllm@0.33.0"]
    model   = ["dense", "hybrid"]
    [server.set]
    num_gpu_blocks_override = [1000, 2000, 4000]

    [[server]]
    profile = "llama.cpp@b11549"
    model   = "dense"
    sizes   = "llama-3.1-8b"               # or a config.json, or {token = 131072}; or gguf = FILE

    [[server]]
    profile  = "vllm@0.33.0"
    replicas = [4, 16]                     # a fleet of each size with each router
    router   = ["round-robin", "cache-aware,cache_threshold=0.5"]

Every trace is run on every server; where a key has a list, each of its values is a cell of its
own. This plan has 17 cells.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import islice, product
from pathlib import Path
from typing import Any, Final, TypeVar

from cachesim.errors import InputError
from cachesim.files import readable
from cachesim.model.spec import Sizes
from cachesim.traces.fleet.fleet import Fleet
from cachesim.traces.playing import check
from cachesim.traces.replay import BOUND, Cell, Measured
from cachesim.traces.source import Source
from cachesim.typed import Json

T = TypeVar("T")

MOST_CELLS: Final = 100_000

READ: Final[Mapping[str, int | None]] = {
    "unit": 0,
    "first": None,
    "scale": 1,
    "replies": None,
    "turn": 0,
    "remember": None,
    "rank": None,
}
"""Numeric settings for reading a trace, with their defaults."""

TRACE_KEYS: Final = {"file", "made", "seed", "timestamps", *READ}
SERVER_KEYS: Final = {
    "profile", "model", "set", "gguf", "sizes", "replicas", "router", "changes", "others",
    "parts",
}  # fmt: skip


class PlanError(InputError):
    """An invalid plan; the message names the place."""


def read_plan(path: Path, traces: Path | None = None) -> tuple[Cell, ...]:
    """The cells of a file's plan, in its order; its traces are in a folder, or beside it."""
    with readable(path, PlanError):
        text = path.read_text(encoding="utf-8")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{path}: is not TOML: {error}") from None
    return plan_of(table, name=str(path), folder=traces or path.parent)


def plan_of(
    table: Mapping[str, Any], *, name: str = "plan", folder: Path = Path()
) -> tuple[Cell, ...]:
    """The cells of a mapping, in the form of the file."""
    _known(table, {"format", "trace", "server"}, name)
    if table.get("format") != 1:
        raise PlanError(f"{name}: format is {table.get('format')!r}; write format = 1")
    sources = _as_many(
        source
        for at, entry in _tables(table, "trace", name)
        for source in _sources(entry, f"{name}: trace {at}", folder)
    )
    servers = _as_many(
        server
        for at, entry in _tables(table, "server", name)
        for server in _servers(entry, f"{name}: server {at}", folder)
    )
    if len(sources) * len(servers) > MOST_CELLS:
        raise PlanError(f"{name}: more than {MOST_CELLS:,} cells; write shorter lists")
    cells = tuple(replace(server, source=source) for source, server in product(sources, servers))
    for cell in dict.fromkeys(replace(cell, source=sources[0]) for cell in cells):
        try:
            check(cell)
        except InputError as error:
            msg = f"{name}: {cell.profile}, {cell.model}, {cell.settings or 'no flags'}: {error}"
            raise PlanError(msg) from None
    return cells


def _as_many(found: Iterator[T]) -> list[T]:
    return list(islice(found, MOST_CELLS + 1))


def _tables(
    table: Mapping[str, Any], key: str, name: str
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    tables = table.get(key)
    if not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        raise PlanError(f"{name}: no [[{key}]]; write one at least")
    yield from enumerate(tables, 1)


def _known(table: Mapping[str, Any], keys: set[str], place: str) -> None:
    for key in table:
        if key not in keys:
            msg = f"{place}: there is no key {key!r}; there are {', '.join(sorted(keys))}"
            raise PlanError(msg)


def _sources(table: Mapping[str, Any], place: str, folder: Path) -> Iterator[Source]:
    _known(table, TRACE_KEYS, place)
    if ("file" in table) == ("made" in table):
        raise PlanError(f'{place}: write file = "..." or made = REQUESTS, one of the two')
    if "file" in table:
        if not isinstance(table["file"], str):
            raise PlanError(f"{place}: file is {table['file']!r}; write a path in quotes")
        names = [str(folder / table["file"])]
    else:
        kind, made = "made", table["made"]
        if isinstance(made, str) and made.startswith("agents:"):
            kind, made = "made:agents", int(digits) if (digits := made[7:]).isdecimal() else made
        counts = _numbers({"made": made}, "made", place, None)
        names = [
            f"{kind}:{count}:{seed}"
            for count in counts
            for seed in _numbers(table, "seed", place, 0)
        ]
    axes: dict[str, list[Any]] = {
        key: _numbers(table, key, place, default) for key, default in READ.items()
    }
    axes["timestamps"] = _several(table.get("timestamps"), f"{place}: timestamps")
    for name, *values in product(names, *axes.values()):  # a product in it would be made whole
        yield Source(name=name, **dict(zip(axes, values, strict=True)))


def _numbers(
    table: Mapping[str, Any], key: str, place: str, default: int | None
) -> list[int | None]:
    values = _several(table.get(key, default), f"{place}: {key}")
    for value in values:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise PlanError(f"{place}: {key} is {value!r}; write a whole number, or a list of them")
    return values


def _servers(table: Mapping[str, Any], place: str, folder: Path) -> Iterator[Cell]:
    _known(table, SERVER_KEYS, place)
    measured = _measured(table, place, folder)
    profiles = _several(table.get("profile"), f"{place}: profile")
    preset = "hybrid" if measured is None or BOUND in profiles else measured.preset()
    models = _several(table.get("model", preset), f"{place}: model")
    for key, values in (("profile", profiles), ("model", models)):
        if not all(isinstance(value, str) for value in values):
            msg = f"{place}: {key} is {table.get(key)!r}; write a name in quotes, or a list of them"
            raise PlanError(msg)
    flags = table.get("set", {})
    if not isinstance(flags, dict):
        raise PlanError(f"{place}: set is {flags!r}; write a table [server.set] of flags")
    if BOUND in profiles and (flags or len(profiles) > 1):
        msg = f'{place}: "{BOUND}" is no server: give it a [[server]] of its own, without flags'
        raise PlanError(msg)
    if BOUND in profiles:
        models = models[:1]  # it knows of no layers
    each_flag = [_several(value, f"{place}: {flag}") for flag, value in flags.items()]
    for (flag, value), choices in zip(flags.items(), each_flag, strict=True):
        if any(isinstance(choice, list | dict) for choice in choices):
            raise PlanError(f"{place}: {flag} is {value!r}; write one value, or a list of values")
    fleets = _fleets(table, place)
    if BOUND in profiles and fleets != [None]:
        raise PlanError(f'{place}: "{BOUND}" is no server: it has no replicas; leave them out')
    for profile, model, fleet, *values in product(profiles, models, fleets, *each_flag):
        yield Cell(
            source=Source(name=""),
            profile=profile,
            model=model,
            options=tuple(zip(flags, values, strict=True)),
            measured=measured,
            fleet=fleet,
        )


def _fleets(table: Mapping[str, Any], place: str) -> list[Fleet | None]:
    """Each number of replicas with each router."""
    if "replicas" not in table:
        if given := sorted({"router", "changes", "others", "parts"} & table.keys()):
            msg = f"{place}: {given[0]} without replicas; write replicas = 8, or a list of numbers"
            raise PlanError(msg)
        return [None]
    routers = _several(table.get("router", "round-robin"), f"{place}: router")
    counts = _numbers(table, "replicas", place, None)
    (parts, *more) = _numbers(table, "parts", place, 1)
    if more:
        raise PlanError(f"{place}: parts is {table['parts']!r}; write one whole number")
    changes, others = (table.get(key, []) for key in ("changes", "others"))
    for key, values in (("router", routers), ("changes", changes), ("others", others)):
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            msg = f"{place}: {key} is {table[key]!r}; write a text in quotes, or a list of them"
            raise PlanError(msg)
    try:
        return [
            Fleet.of(n or 0, str(router), changes, others, parts or 0)
            for n in counts
            for router in routers
        ]
    except InputError as error:
        raise PlanError(f"{place}: {error}") from None


def _measured(table: Mapping[str, Any], place: str, folder: Path) -> Measured | None:
    gguf, sizes = table.get("gguf"), table.get("sizes")
    if gguf is not None and sizes is not None:
        raise PlanError(f"{place}: gguf and sizes are both given; leave one of the two out")
    if gguf is not None:
        if not isinstance(gguf, str):
            raise PlanError(f"{place}: gguf is {gguf!r}; write a path in quotes")
        return Measured.of_gguf(folder / gguf)
    if sizes is None:
        return None
    if isinstance(sizes, str):
        return Measured.of_model(sizes, folder)
    known = {field.name for field in fields(Sizes)}
    if not isinstance(sizes, dict) or not sizes or not sizes.keys() <= known:
        raise PlanError(
            f"{place}: sizes is {str(sizes)[:60]}; write a table of bytes, as {{token = 131072}}, "
            "or a model"
        )
    written = ", ".join(f"{name} = {value}" for name, value in sizes.items())
    return Measured(sizes=Sizes(**sizes), by=f"sizes = {{{written}}}")


def _several(value: Json, place: str) -> list[Json]:
    if value == []:
        raise PlanError(f"{place} is an empty list; write one value, or a list of values")
    return value if isinstance(value, list) else [value]
