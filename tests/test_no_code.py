"""No input runs code: nothing below the package unpickles, evaluates or executes what it reads."""

import ast
import pickle
import pickletools
from collections.abc import Iterator
from pathlib import Path

import pytest

import cachesim
from cachesim.engines.llama_cpp_python.states import _stored

ROOT = Path(cachesim.__file__).parent.parent
PROGRAMS = [*(ROOT / "cachesim").rglob("*.py"), *(ROOT / "conformance" / "real").rglob("*.py")]

FORBIDDEN = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
FORBIDDEN |= {"pickletools", "jsonpickle", "copyreg", "code", "codeop", "yaml"}

CALLS = {"eval", "exec", "compile", "__import__"}
RUNS_ITS_OWN = {
    "cachesim/learn/lesson.py": {"eval", "exec", "compile"},  # the lessons of the package
    # a wheel's own source, in its environment
    "conformance/real/mlx_lm/vllm_mlx_worker.py": {"exec", "compile"},
}


def found_in(text: str) -> Iterator[str]:
    """What a module imports or calls of those that run what they read."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.split(".")[0] in FORBIDDEN)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in FORBIDDEN:
                yield node.module or ""
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in CALLS:
                yield node.func.id
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            first = node.args[0] if node.args else None
            value = first.value if isinstance(first, ast.Constant) else ""
            if name in {"import_module", "__import__"} and str(value).split(".")[0] in FORBIDDEN:
                yield f"{name} {value}"
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            allowed = given.get("allow_pickle")
            if isinstance(allowed, ast.Constant) and allowed.value is not False:
                yield "allow_pickle"


def test_no_module_runs_what_it_reads() -> None:
    names = {path.relative_to(ROOT).as_posix(): path for path in PROGRAMS}
    found = {name: {*found_in(path.read_text("utf-8"))} for name, path in names.items()}

    assert {} == {
        name: calls for name, calls in found.items() if calls - RUNS_ITS_OWN.get(name, set())
    }


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from marshal import loads",
        "import os, shelve",
        "eval('1')",
        "import_module('dill')",
        "importlib.import_module('pickle')",
        "numpy.load('x', allow_pickle=True)",
    ],
)
def test_each_way_is_found(text: str) -> None:
    assert 1 == len([*found_in(text)])


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 300, 30_000, 70_000])
def test_a_stored_key_has_the_bytes_of_a_pickled_tuple(size: int) -> None:
    key = tuple((at * 7919) % 3_000_000_000 - 0 for at in range(size))
    key = tuple(each % (1 << (8, 16, 31)[at % 3]) for at, each in enumerate(key))
    assert pickletools.optimize(pickle.dumps(key, 5)) == _stored(key)
