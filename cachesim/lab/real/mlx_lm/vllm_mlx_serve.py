"""Inside mlx-lm's environment: the scheduler's settings, as a wheel's own `serve` computes them.

The statements on which the settings depend are those of the wheel's `serve_command`; the others,
which download a model and open a port, are left out.
"""

import argparse
import ast
import importlib
import inspect
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias
from unittest.mock import MagicMock

from cachesim.lab.real.mlx_lm.server_worker import namespace

Json: TypeAlias = Any
Real: TypeAlias = Any  # modules, classes and objects of the release: known only when it runs

CONFIG = "SchedulerConfig"

ABSENT = ("jsonschema", "websockets")
"""Requirements of Rapid-MLX for calls of tools and for `rapid-mlx share`, which do not run here."""


def arguments_of(folder: str, workload: Json) -> list[str]:
    """The command line of a workload, after `vllm-mlx` or `rapid-mlx`."""
    if "serve" not in workload:
        return ["serve", folder, "--continuous-batching"]
    entries = workload["serve"]["entries"]
    more = [] if entries is None else ["--hybrid-cache-entries", str(entries)]
    return ["serve", folder, *more]


def config_of(arguments: Sequence[str], alias: str | None = None) -> tuple[Json, Real]:
    """The parsed flags, and the settings of the scheduler that `serve_command` starts with them.

    `alias`: a model that Rapid-MLX lists, by which it knows a cache that cannot be cut.
    """
    line: Real = importlib.import_module("vllm_mlx.cli")
    sys.argv = [line.__name__, *arguments]  # read for flags that a user typed
    for package in ABSENT:
        sys.modules.setdefault(package, MagicMock())
    parsed = vars(namespace(line, list(arguments)))
    named = argparse.Namespace(**parsed, _original_alias=alias)
    function: Any = ast.parse(inspect.getsource(line.serve_command)).body[0]
    call = next(
        each
        for each in ast.walk(function)
        if isinstance(each, ast.Call) and _name(each.func) == CONFIG
    )
    needed, kept = _names(call, ast.Load), list[ast.stmt]()
    for statement in reversed(_before(function.body, call)):
        if _names(statement, ast.Store) & needed:
            kept.insert(0, statement)
            needed |= _names(statement, ast.Load)
    function.body = [*kept, ast.Return(call)]
    made = ast.fix_missing_locations(ast.Module([function], []))
    names = dict(vars(line))
    exec(compile(made, str(line.__file__), "exec"), names)  # noqa: S102 - the wheel's own source
    return parsed, names[function.name](named)


def _before(block: Sequence[ast.stmt], call: ast.Call) -> list[ast.stmt]:
    at = next(n for n, each in enumerate(block) if any(part is call for part in ast.walk(each)))
    blocks = (getattr(block[at], field, None) or [] for field in ("body", "orelse"))
    inner = next(
        (each for each in blocks if any(part is call for one in each for part in ast.walk(one))),
        None,
    )
    return [*block[:at], *([] if inner is None else _before(inner, call))]


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Names and flags that a statement reads or binds; imports bind, too."""
    found = {
        _name(each)
        for each in ast.walk(node)
        if isinstance(each, (ast.Name, ast.Attribute)) and isinstance(each.ctx, context)
    }
    if context is ast.Store:
        imports = (ast.Import, ast.ImportFrom)
        taken = (each for each in ast.walk(node) if isinstance(each, imports))
        found |= {one.asname or one.name for each in taken for one in each.names}
    return found - {""}


def _name(node: ast.AST) -> str:
    """A name, or a flag as `args.flag`."""
    if isinstance(node, ast.Attribute):
        return f"args.{node.attr}" if _name(node.value) == "args" else ""
    return node.id if isinstance(node, ast.Name) else ""
