"""A defect put into a real server: run by the Python of a release's environment.

    python planted.py DEFECT llama_server.py -m model.gguf --port 8080

The server is the release's own but for one function, so that a law which is kept by the sound
release and not by this one can tell them apart. Functions of mlx-lm are replaced; calls between the
parts of the wheel xllamacpp go through a table of addresses, of which one entry is changed.
"""

import ctypes
import importlib
import mmap
import runpy
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

Real: TypeAlias = Any  # functions and objects of the release: known only when it runs

SIZE = ctypes.c_size_t
SEQ_RM = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int)
SET_DATA = ctypes.CFUNCTYPE(
    SIZE, ctypes.c_void_p, ctypes.c_void_p, SIZE, ctypes.c_int, ctypes.c_uint
)

# -- llama.cpp -------------------------------------------------------------------------------------

RELOCATIONS, SIZE_OF_RELOCATIONS, SYMBOLS, STRINGS = 23, 2, 6, 5  # tags of the dynamic section
KEPT: list[Real] = []  # callbacks live as long as the process


class Wheel:
    """The loaded library of xllamacpp, and its table of addresses."""

    def __init__(self) -> None:
        module = importlib.import_module("xllamacpp")
        (self.file,) = Path(module.__file__ or "").parent.glob("*.so")
        self.library = ctypes.CDLL(str(self.file))
        maps = Path("/proc/self/maps").read_text().splitlines()
        self.base = min(int(line.split("-")[0], 16) for line in maps if str(self.file) in line)

    def replace(self, name: str, kind: Real, made: Callable[[Real], Callable[..., Real]]) -> None:
        """Put a function in place of one of the library's; `made` gets the original."""
        original = kind((name, self.library))
        callback = kind(made(original))
        KEPT.extend([original, callback])
        slot = self.base + self._slot(name)
        page = slot & ~(mmap.PAGESIZE - 1)
        libc = ctypes.CDLL(None)
        libc.mprotect(ctypes.c_void_p(page), SIZE(2 * mmap.PAGESIZE), 3)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        ctypes.c_void_p.from_address(slot).value = address

    def _slot(self, name: str) -> int:
        """Offset of the entry that calls of a function go through."""
        data = self.file.read_bytes()
        table, size, count = (
            *struct.unpack_from("<Q", data, 32),
            *struct.unpack_from("<HH", data, 54),
        )
        loads: list[tuple[int, int, int]] = []
        dynamic = 0
        for at in range(table, table + size * count, size):
            kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, at)
            loads += [(address, offset, length)] if kind == 1 else []
            dynamic = offset if kind == 2 else dynamic

        def place(address: int) -> int:
            start, offset, _ = next(
                load for load in loads if load[0] <= address < load[0] + load[2]
            )
            return address - start + offset

        tags: dict[int, int] = {}
        while (entry := struct.unpack_from("<QQ", data, dynamic))[0]:
            tags[entry[0]] = entry[1]
            dynamic += 16
        symbols, strings = place(tags[SYMBOLS]), place(tags[STRINGS])
        first = place(tags[RELOCATIONS])
        for at in range(first, first + tags[SIZE_OF_RELOCATIONS], 24):
            address, info, _ = struct.unpack_from("<QQq", data, at)
            start = strings + struct.unpack_from("<I", data, symbols + 24 * (info >> 32))[0]
            if data[start : start + len(name) + 1] == name.encode() + b"\0":
                return int(address)
        raise KeyError(name)


def one_cell_stays() -> None:
    """A removal leaves its first token in memory."""

    def made(original: Real) -> Callable[..., Real]:
        def remove(memory: int, sequence: int, first: int, last: int) -> bool:
            return bool(original(memory, sequence, first + (first > 0), last))

        return remove

    Wheel().replace("llama_memory_seq_rm", SEQ_RM, made)


def nothing_is_removed() -> None:
    """A removal behind the first token does nothing, and says that it has done it."""

    def made(original: Real) -> Callable[..., Real]:
        def remove(memory: int, sequence: int, first: int, last: int) -> bool:
            return first > 0 or bool(original(memory, sequence, first, last))

        return remove

    Wheel().replace("llama_memory_seq_rm", SEQ_RM, made)


def first_checkpoint_is_restored() -> None:
    """Whatever checkpoint is restored, it is the first one of its size."""
    first: dict[int, bytes] = {}

    def made(original: Real) -> Callable[..., Real]:
        def restore(context: int, source: int, size: int, sequence: int, flags: int) -> int:
            held = first.setdefault(size, ctypes.string_at(source, size))
            KEPT.append(buffer := ctypes.create_string_buffer(held, size))
            del KEPT[8:-1]
            return int(original(context, ctypes.addressof(buffer), size, sequence, flags))

        return restore

    Wheel().replace("llama_state_seq_set_data_ext", SET_DATA, made)


LLAMA_CPP = {
    "one cell stays": one_cell_stays,
    "nothing is removed": nothing_is_removed,
    "the first checkpoint is restored": first_checkpoint_is_restored,
}


# -- mlx-lm ----------------------------------------------------------------------------------------


def caches() -> Real:
    return importlib.import_module("mlx_lm.models.cache")


def one_token_stays() -> None:
    """A prompt cache is cut one token behind the place that was asked for."""
    module = caches()
    trim = module.trim_prompt_cache
    module.trim_prompt_cache = lambda cache, count: trim(cache, max(0, count - 1))


def nothing_is_cut() -> None:
    """Any entry counts as one that can be cut, and keeps all its tokens."""
    module = caches()
    module.can_trim_prompt_cache = lambda _: True
    module.trim_prompt_cache = lambda _, count: count


def entries_are_shared() -> None:
    """A request goes on in the entry itself, and not in a copy of it."""

    class Shallow:
        deepcopy = staticmethod(lambda entry: entry)

    caches().copy = Shallow


def first_token_is_not_compared() -> None:
    """An entry is found for a prompt that differs from it in its first token alone."""
    kind = caches().LRUPromptCache
    fetch, insert = kind.fetch_nearest_cache, kind.insert_cache

    def changed(tokens: Real) -> Real:
        return [0, *tokens[1:]]

    def fetched(self: Real, model: Real, tokens: Real) -> Real:
        cache, rest = fetch(self, model, changed(tokens))
        return cache, list(tokens)[len(tokens) - len(rest) :]

    kind.fetch_nearest_cache = fetched
    kind.insert_cache = lambda self, model, tokens, *more, **named: insert(
        self, model, changed(tokens), *more, **named
    )


MLX_LM = {
    "one token stays": one_token_stays,
    "nothing is cut": nothing_is_cut,
    "entries are shared": entries_are_shared,
    "the first token is not compared": first_token_is_not_compared,
}


def after_start(plant: Callable[[], None]) -> None:
    """Plant it once the server is up: while it starts, nothing may call back into Python."""
    module: Real = importlib.import_module("xllamacpp")
    start = module.Server

    def started(parameters: Real) -> Real:
        server = start(parameters)
        plant()
        return server

    module.Server = started


def main() -> None:
    name, *sys.argv = sys.argv[1:]
    if name in LLAMA_CPP:
        after_start(LLAMA_CPP[name])
    else:
        MLX_LM[name]()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
