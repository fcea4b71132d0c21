"""Replay of recorded results of real engines, with a module for each kind of file."""

import gzip
import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from cachesim.engines.sglang.family import FAMILY as SGLANG
from cachesim.engines.vllm.family import FAMILY as VLLM
from cachesim.errors import ProfileError, ScenarioError, UpstreamAbort
from cachesim.prove.playing import Difference
from cachesim.scenario.limits import TOTAL_TOKENS
from cachesim.typed import JsonObject, mapping
from conformance.real.agreement import Race
from conformance.real.sglang.playing import Driver as SglangDriver
from conformance.real.vllm.playing import Driver
from conformance.real.vllm.steps import Runs, difference

Line: TypeAlias = Mapping[str, Any]
"""Recorded sequence."""


MALFORMED: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions in the replay of a line that no real engine recorded."""

Check: TypeAlias = Callable[[Line], Difference | Race | None]


class Kind(NamedTuple):
    """A kind of file: the test for its lines, and the module that replays them."""

    name: str
    module: str  # has a function `mismatch(line)`
    operations: str  # the key under which a line lists them
    fits: Callable[[Line], bool]
    function: str = "mismatch"


def _keys(*names: str) -> Callable[[Line], bool]:
    return lambda line: {*names} <= {*line}


def _profile(engine: str) -> Callable[[Line], bool]:
    return lambda line: str(line.get("profile", "")).startswith(engine)


def _config(field: str) -> Callable[[Line], bool]:
    return lambda line: "version" in line and field in mapping(line.get("config"))


KINDS: Final = (
    Kind("llama.cpp memory", "conformance.real.vectors.memory", "ops", _keys("memory", "ops")),
    Kind(
        "libllama",
        "conformance.real.llama_cpp.library",
        "operations",
        _keys("library", "operations"),
    ),
    Kind(
        "mlx-lm caches and stores",
        "conformance.real.mlx_lm.classes",
        "ops",
        _keys("version", "ops"),
    ),
    Kind("vLLM scheduler", "conformance.real.vectors.replay", "steps", _config("groups")),
    Kind("SGLang scheduler", "conformance.real.vectors.replay", "steps", _config("kind")),
    Kind(
        "mlx-lm server", "conformance.real.vectors.mlx_server", "steps", _keys("version", "steps")
    ),
    Kind(
        "ik_llama.cpp server",
        "conformance.real.ik_llama.orders",
        "steps",
        _profile("ik_llama.cpp"),
        "judged",
    ),
    Kind("llama.cpp server", "conformance.real.ik_llama.orders", "steps", _profile("llama.cpp")),
)
"""The kinds of files there are; the first that fits a file's first line is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Counts of a file. Operations behind the first difference of a sequence do not count."""

    sequences: int
    sequences_equal: int
    operations: int
    operations_equal: int
    first: tuple[str, Difference] | None  # and the operation
    races: tuple[tuple[str, Race], ...] = ()  # equal in another order of arrival, by id

    def __str__(self) -> str:
        races = f"; {len(self.races)} in another order of arrival" if self.races else ""
        return (
            f"{self.sequences_equal} of {self.sequences} sequences, "
            f"{self.operations_equal} of {self.operations} operations equal{races}"
        )


def replay(path: Path) -> Summary:
    """Replay every sequence of a file."""
    sequences = sequences_equal = operations = operations_equal = 0
    first: tuple[str, Difference] | None = None
    races: list[tuple[str, Race]] = []
    kind: Kind | None = None
    for number, line in enumerate(lines_of(path), 1):
        kind = kind or kind_of(line, path)
        ops, verdict = played(line, path, number, kind=kind)
        found = None if isinstance(verdict, Race) else verdict
        if isinstance(verdict, Race):
            races.append((str(line["id"]), verdict))
        sequences += 1
        operations += len(ops)
        operations_equal += len(ops) if found is None else found.step
        sequences_equal += found is None
        if found is not None and first is None:
            operation = f"operation {found.step}: {json.dumps(ops[found.step])}"
            first = f"{line['id']}, {operation}", found
    if kind is None:
        raise ScenarioError(f"{path} has no lines: a vector file has one JSON object per line")
    return Summary(
        sequences=sequences,
        sequences_equal=sequences_equal,
        operations=operations,
        operations_equal=operations_equal,
        first=first,
        races=tuple(races),
    )


def played(
    line: Line, path: Path, number: int, *, kind: Kind | None = None
) -> tuple[list[Line], Difference | Race | None]:
    """The operations of a line, and the first that differs; a line that is none is refused."""
    kind = kind or kind_of(line, path)
    module = importlib.import_module(kind.module)
    check: Check = getattr(module, kind.function)
    listed = line.get(kind.operations)
    if not isinstance(listed, list):
        raise ScenarioError(f"{path}:{number}: {kind.operations!r} must be a list of operations")
    # Requests that are sent together stand in a list of their own.
    ops = [op for each in listed for op in (each if isinstance(each, list) else [each])]
    if not all(isinstance(each, dict) for each in ops):
        raise ScenarioError(f"{path}:{number}: each of {kind.operations!r} must be an object")
    try:
        return ops, check(line)
    except UpstreamAbort as abort:
        raise ScenarioError(f"{path}:{number}: with these flags {abort}") from None
    except MALFORMED as error:
        if os.environ.get("CACHESIM_TRACEBACK"):
            raise
        raise ScenarioError(
            f"{path}:{number}: this line cannot be replayed as one of {kind.name}:"
            f" {type(error).__name__}: {error}; CACHESIM_TRACEBACK=1 shows where"
        ) from error


def kind_of(line: Line, path: Path) -> Kind:
    """The kind of file that begins with this line."""
    for kind in KINDS:
        if kind.fits(line):
            return kind
    known = ", ".join(kind.name for kind in KINDS)
    raise ScenarioError(f"{path} is no vector file: there are files of {known}")


def line_of(text: str, path: Path, number: int) -> Line:
    """A line of a file; Python's `Infinity` and `NaN` are refused."""

    def refuse(word: str) -> None:
        raise ScenarioError(f"{path}:{number}: {word} is no JSON; write a number")

    found = json.loads(text, parse_constant=refuse)
    if not isinstance(found, dict):
        raise ScenarioError(f"{path}:{number}: write one JSON object per line")
    return found


def lines_of(path: Path) -> Iterator[Line]:
    """The lines of a JSON Lines file, compressed or not."""
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        for number, line in enumerate(text.decode().splitlines(), 1):
            yield line_of(line, path, number)
    except UnicodeDecodeError as error:
        msg = f"{path}: is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        raise ScenarioError(msg) from None
    except (OSError, EOFError, json.JSONDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise ScenarioError(f"{path}: cannot be read as a vector file: {why or error}") from None


# -- schedulers ------------------------------------------------------------------------------------

POOLS: Final = ("blocks", "tokens", "window_tokens", "states")
"""Pool sizes in a configuration: vLLM's blocks, SGLang's tokens and states."""


class Player(Protocol):
    """A scheduler that runs groups of requests one after the other."""

    def play(self, group: list[JsonObject]) -> JsonObject: ...


def mismatch(line: Mapping[str, Any]) -> Difference | None:
    """Run one recorded sequence; where it first differs, or None."""
    for pool in POOLS:
        size = line["config"].get(pool, 0)
        if size > TOTAL_TOKENS:
            raise ValueError(f"a pool of {size:,} {pool}; {TOTAL_TOKENS:,} is the most")
    for asked in (each.get("generate", 0) for group in line["steps"] for each in group):
        if asked > TOTAL_TOKENS:
            raise ValueError(f"generate: a reply of {asked:,}; {TOTAL_TOKENS:,} is the most")
    player = _player_for(line)
    step = 0
    for group, expected in zip(line["steps"], line["results"], strict=True):
        actual = player.play(group)
        if difference([expected], [actual]) if "part" in line else actual != expected:
            return Difference(step=step, real=expected, simulated=actual)
        step += len(group)
    return None


def _player_for(line: Mapping[str, Any]) -> Player:
    config, release = line["config"], line["version"]
    try:
        if line.get("part") == "runner":
            return Runs(config, VLLM.release(release).rules, recorded=True)
        if "groups" in config:
            # The recordings were made with the states' block as `cache_config.block_size`.
            # A server makes it the smallest block of all groups, and prefill is cut in it.
            driver = Driver(config, VLLM.release(release).rules, recorded=True)
            scheduler = driver.server.scheduler
            if scheduler.splitter is not None:
                states = next(group for group in config["groups"] if group["kind"] == "mamba")
                scheduler.splitter = replace(scheduler.splitter, size=states["block"])
            return driver
        return SglangDriver(config, SGLANG.release(release).rules)
    except ProfileError as error:
        raise ScenarioError(str(error)) from error
