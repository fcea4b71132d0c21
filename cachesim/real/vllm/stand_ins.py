"""Imports the scheduler core of an unpacked vLLM wheel without anything that it would drag in.

Real are the modules named in `REAL`: scheduler, cache manager, request, hashing. Everything else,
vLLM's own configuration and outside packages alike, becomes a module that answers every question
with something empty. Runs in the worker: the standard library is all there is.
"""

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cachesim.real.empty_modules import EmptyModules, Nothing, bare_packages

Real = Any  # modules, classes and objects of the release: known only when it runs

REAL: Final = (
    "vllm.v1.core",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.kv_cache_layout",
    "vllm.v1.request",
    "vllm.v1.outputs",
    "vllm.v1.metrics.stats",
    "vllm.v1.hisparse",
    "vllm.utils.math_utils",
    "vllm.utils.hashing",
)
"""Modules and packages that are the release's own."""

PACKAGES: Final = ("vllm", "vllm.v1", "vllm.utils", "vllm.v1.metrics", "vllm.distributed")
"""Packages that only lead to them; their own `__init__` is not run."""

OUTSIDE: Final = frozenset(
    {
        "cbor2",
        "msgspec",
        "numpy",
        "prometheus_client",
        "psutil",
        "pydantic",
        "torch",
        "transformers",
        "typing_extensions",
        "xxhash",
        "zmq",
    }
)


def _is_real(name: str) -> bool:
    return name in PACKAGES or any(name == each or name.startswith(f"{each}.") for each in REAL)


def _is_missing(name: str) -> bool:
    """A stand-in for everything outside, and for what of vLLM is not `REAL`."""
    root = name.partition(".")[0]
    return root in OUTSIDE or (root == "vllm" and not _is_real(name))


def install(root: Path) -> None:
    """Make `import vllm.v1.core...` work from an unpacked wheel."""
    sys.meta_path.insert(0, EmptyModules(_is_missing))
    bare_packages(root, PACKAGES)
    _fill()


class ConstantList:
    """A list that may be read only, as the request hands out its tokens."""

    def __init__(self, held: list[int]) -> None:
        self._held = held

    def __getitem__(self, index: Real) -> Real:
        return self._held[index]

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[int]:
        return iter(self._held)

    def __class_getitem__(cls, _: object) -> type:
        return cls

    def copy(self) -> list[int]:
        """A list of one's own."""
        return list(self._held)


class SamplingParams:
    """What a request asks of sampling: nothing, but how many tokens."""

    min_tokens = 0
    n = 1
    ignore_eos = True
    skip_reading_prefix_cache = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    all_stop_token_ids: frozenset[int] = frozenset()

    def __init__(self, **named: Real) -> None:
        self.__dict__.update(named)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _fill() -> None:
    """Names whose emptiness would change a decision get what they stand for."""

    def put(module: str, **names: Real) -> None:
        found = importlib.import_module(module)
        for name, value in names.items():
            setattr(found, name, value)

    def nothing_to_record(*_: Real) -> Real:
        return Nothing()

    put(
        "vllm.v1.utils", ConstantList=ConstantList, record_function_or_nullcontext=nothing_to_record
    )
    put("vllm.utils.torch_utils", get_dtype_size=lambda *_: 4)
    put("vllm.sampling_params", SamplingParams=SamplingParams)
    put(
        "vllm.v1.structured_output.request",
        StructuredOutputRequest=types.SimpleNamespace(from_sampling_params=lambda *_: None),
    )
    put("vllm.multimodal.utils", get_mm_features_in_window=lambda *_, **__: [])
    put("vllm.envs", VLLM_PREFIX_CACHE_RETENTION_INTERVAL=None)
    utilities = sys.modules["vllm.utils"]
    utilities.length_from_prompt_token_ids_or_embeds = lambda ids, _embeds: len(ids)  # type: ignore[attr-defined]
    utilities.__getattr__ = _anything  # type: ignore[method-assign]


def _anything(name: str) -> Real:
    if name.startswith("__"):
        raise AttributeError(name)
    return Nothing
