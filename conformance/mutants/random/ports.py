"""The ports, their decision code, and mutants drawn from it."""

import ast
import gc
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import cachesim
from conformance.mutants.random.operators import Replacing, Site, sites

ENGINES: Final = Path(cachesim.__file__).parent / "engines"
TESTS: Final = Path(__file__).parents[3] / "tests"

DESCRIBES: Final = frozenset(
    [
        "causes",
        "rules",
        "profiles",
        "options",
        "family",
        "build",
        "held",
        "integrity",
        "releases",
        "search",
        "vocabulary",
        "observe",
        "recomputed",
        "stored",
        "sizes",
        "events",
        "provenance",
        "account",
        "causes",
        "files",
        "slot_file",
        "snapshot",
        "raised",
        "patches",
        "merged",
        "word_tokenizer",
        "__init__",
    ]
)
"""Modules that declare, check, explain, show or write files, and decide nothing."""

SHOWS: Final = frozenset(
    [
        "Account", "Computed", "Holding", "RowBytes", "States", "_as_kept", "_misplaced", "_bytes",
        "_cells", "_checkpoint", "_deepest", "_described", "_fail", "_free", "_holding", "_host",
        "_is_left", "_locks", "_node", "_nodes", "_opened", "_own_cells", "_packed",
        "_host_entries", "_host_paths", "_rows", "_visible_next", "_sizes", "_tokens", "_unpacked",
        "amounts", "check_books", "check_integrity", "check_reserve", "context_params", "described",
        "held", "held_by_host", "holdings", "is_sound", "load_prompt_cache",
        "n_swa", "name_of", "nbytes_or_error", "open_prompt_cache", "open_server", "row_bytes",
        "proposals", "save_prompt_cache", "snapshot", "texts", "window_of",
    ]
)  # fmt: skip
"""Classes and functions of other modules that declare, check, show or write files."""


@dataclass(frozen=True, slots=True)
class Port:
    """One port: its name, and its package under `cachesim.engines`."""

    name: str
    package: str

    @property
    def files(self) -> list[Path]:
        """The files of its decision code."""
        found = (ENGINES / self.package).rglob("*.py")
        return sorted(file for file in found if file.stem not in DESCRIBES)

    @property
    def tests(self) -> list[str]:
        name = self.package.partition("_")[0]
        folders = (TESTS / "prove", TESTS / "conformance")
        beside = [path for folder in folders for path in folder.glob(f"test_{name}_*.py")]
        return [str(TESTS / "engines" / self.package), *map(str, sorted(beside))]


PORTS: Final = {
    port.name: port
    for port in (
        Port("llama.cpp", "llamacpp"),
        Port("ik_llama.cpp", "ik_llama"),
        Port("mlx-lm", "mlx_lm"),
        Port("vllm", "vllm"),
        Port("sglang", "sglang"),
    )
}


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a port, methods included; `qualname` as Python names it."""

    file: str  # under cachesim/engines
    qualname: str
    node: ast.FunctionDef = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RandomMutant:
    """One change of one function."""

    function: Function
    site: Site = field(compare=False, repr=False)
    line: int
    source: str  # the whole line
    old: str
    new: str

    @property
    def operator(self) -> str:
        return self.site.operator

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """An identity while its line is unchanged."""
        return self.function.file, self.function.qualname, self.source, self.old, self.new

    def rank(self, seed: int) -> bytes:
        """Its random place in the order of a draw, wherever the function stands."""
        _, *named = self.key
        return sha256(repr((seed, *named)).encode()).digest()

    @property
    def place(self) -> str:
        """File, line and function, for readers."""
        return f"{self.function.file}:{self.line} {self.function.qualname}"


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def trees(port: Port) -> dict[Path, ast.Module]:
    return {file: tree_of(file) for file in port.files}


def functions(port: Port) -> Iterator[Function]:
    """The outermost functions of a port; what is defined within one belongs to it."""
    for file, tree in trees(port).items():
        yield from _functions(tree.body, str(file.relative_to(ENGINES)), "")


def _functions(body: Iterable[ast.stmt], file: str, prefix: str) -> Iterator[Function]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name not in SHOWS:
            yield from _functions(node.body, file, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            dunder = node.name.startswith("__") and node.name != "__init__"
            if not dunder and node.name not in SHOWS:
                yield Function(file, prefix + node.name, node)


def signatures(port: Port) -> dict[str, tuple[str, ...]]:
    """Types of the positional parameters, where only one function has the name."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for function in functions(port):
        node = function.node
        decorators = {getattr(each, "id", "") for each in node.decorator_list}
        given = node.args.args
        if "." in function.qualname and "staticmethod" not in decorators:
            given = given[1:]
        name = node.name
        if name == "__init__":
            name = function.qualname.split(".")[-2]
        types = tuple(ast.unparse(arg.annotation) if arg.annotation else "" for arg in given)
        found.setdefault(name, []).append(types)
    return {name: types[0] for name, types in found.items() if len({*types}) == 1}


@cache
def candidates(port: Port) -> tuple[RandomMutant, ...]:
    """Every mutant that the operators make, each once."""
    types, found = signatures(port), dict[Any, Any]()
    for function in functions(port):
        lines = (ENGINES / function.file).read_text().splitlines()
        for site in sites(function.node, types):
            line = getattr(site.node, "lineno", site.statement.lineno)
            old, new = (
                ast.unparse(ast.fix_missing_locations(each)).partition("\n")[0]
                for each in (site.node, site.replacement)
            )
            mutant = RandomMutant(function, site, line, lines[line - 1].strip(), old, new)
            if old != new:
                found.setdefault(mutant.key, mutant)
    return tuple(found.values())


def draw(port: Port, count: int, seed: int) -> list[RandomMutant]:
    """So many mutants, no two of one statement; a changed line redraws no other."""
    taken: set[int] = set()
    found: list[RandomMutant] = []
    for mutant in sorted(candidates(port), key=lambda candidate: candidate.rank(seed)):
        statement = id(mutant.site.statement)
        if statement not in taken and len(found) < count:
            taken.add(statement)
            found.append(mutant)
    return found


# -- in place --------------------------------------------------------------------------------------


def load(port: Port) -> None:
    """Import all of a port, and note its functions, whoever has imported them."""
    for file in port.files:
        importlib.import_module(
            "cachesim.engines."
            + str(file.relative_to(ENGINES)).removesuffix(".py").replace("/", ".")
        )
    for get_object in gc.get_objects():
        if isinstance(get_object, FunctionType) and get_object.__module__ in sys.modules:
            code = get_object.__code__
            if code.co_filename.startswith(str(ENGINES)):
                key = code.co_filename, code.co_qualname, code.co_firstlineno
                LOADED.setdefault(key, []).append(get_object)


LOADED: Final[dict[tuple[str, str, int], list[FunctionType]]] = {}
"""The functions of the ports that were loaded, by file, name and line."""


def plant(mutant: RandomMutant) -> None:
    """Put a mutant in place in this process, which is of no other use from then on."""
    site, node = mutant.site, mutant.function.node
    replacement = ast.copy_location(site.replacement, site.node)
    if any(isinstance(each, ast.Name) and each.id == "super" for each in ast.walk(node)):
        node.body += ast.parse("if False: super").body  # a last call that goes leaves its cell
    _recompile([mutant.function], [Replacing(site.node, lambda _: replacement)])


def probe(mutants: Sequence[RandomMutant], name: str) -> None:
    """Call a builtin with a mutant's number before each statement that a mutant would change."""
    edits = []
    at: dict[int, list[int]] = {}
    for number, mutant in enumerate(mutants):
        at.setdefault(id(mutant.site.statement), []).append(number)
    for numbers in at.values():
        statement = mutants[numbers[0]].site.statement
        call = ast.parse(f"{name}({', '.join(map(str, numbers))})").body[0]
        for node in ast.walk(call):
            if hasattr(node, "lineno"):
                ast.copy_location(node, statement)
        edits.append(_Before(statement, call))
    _recompile([mutant.function for mutant in mutants], edits)


class _Before(Replacing):
    def __init__(self, node: ast.stmt, call: ast.stmt) -> None:
        super().__init__(node, lambda found: [call, found])  # type: ignore[list-item]


def _recompile(changed: Iterable[Function], edits: Iterable[ast.NodeTransformer]) -> None:
    """Give functions the code of their changed source, whoever has imported them."""
    by_file: dict[str, list[Function]] = {}
    for function in dict.fromkeys(changed):
        by_file.setdefault(function.file, []).append(function)
    edits = list(edits)
    for file, inside in by_file.items():
        path = ENGINES / file
        tree = tree_of(path)
        before = _codes(compile(path.read_text(), str(path), "exec"))
        for function in inside:
            for edit in edits:
                edit.visit(function.node)
        after = _codes(compile(ast.fix_missing_locations(tree), str(path), "exec"))
        wanted = {function.qualname for function in inside}
        for name in wanted:
            _replace(str(path), before[name], after[name])


def _codes(code: CodeType) -> dict[str, CodeType]:
    found = {}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found[const.co_qualname] = const
            if "<locals>" not in const.co_qualname:
                found |= _codes(const)
    return found


def _replace(path: str, before: CodeType, after: CodeType) -> None:
    """Give new code to every function that has the old one."""
    found = LOADED.get((path, before.co_qualname, before.co_firstlineno), [])
    if not found:
        msg = f"no function {before.co_qualname} of {path} is loaded: nothing would change"
        raise LookupError(msg)
    for each in found:
        each.__code__ = after
