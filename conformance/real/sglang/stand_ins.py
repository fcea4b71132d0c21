"""Imports the scheduler of an unpacked SGLang wheel without its heavy imports.

Scheduler, batches, policies, pools, allocators, trees and settings are the release's own. The rest
is empty: kernels, models, layers, web servers, and every package outside but PyTorch and msgspec.
Runs in the worker, with PyTorch's CPU build.
"""

import importlib
import importlib.machinery
import os
import re
import sys
from pathlib import Path
from typing import Final

from cachesim.prove.worker_side import EmptyModules, Nothing, Real, bare_packages, unpinned

EMPTY: Final = (
    "sglang.jit_kernel",
    "sglang.kernels",
    *(
        f"sglang.srt.{name}"
        for name in (
            "configs", "constrained", "debug_utils", "distributed", "entrypoints", "eplb",
            "hardware_backend", "layers", "lora", "model_loader", "models", "multimodal",
            "observability", "parser", "sampling.penaltylib", "sampling.sampling_batch_info",
            "tracing", "utils.hf_transformers_patches", "utils.hf_transformers_utils",
            "weight_sync",
        )
    ),
)  # fmt: skip
"""Parts of the release that no decision needs."""

REAL: Final = (
    "sglang.srt.configs.mamba_utils",
    "sglang.srt.layers.attention.base_attn_backend",
    "sglang.srt.layers.attention.hybrid_linear_attn_backend",
    "sglang.srt.layers.attention.mamba.mamba2_metadata",
    "sglang.srt.layers.attention.mamba.prefill_track_metadata",
)
"""Modules of theirs that are the release's own."""

PACKAGES: Final = (
    "sglang",
    "sglang.srt.configs",
    "sglang.srt.layers",
    "sglang.srt.layers.attention",
    "sglang.srt.layers.attention.mamba",
)
"""Packages that only lead to others; their own `__init__` is not run."""

INSTALLED: Final = (
    "numpy", "torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "jinja2",
    "markupsafe", "filelock", "fsspec", "typing_extensions", "packaging", "msgspec",
    "setuptools", "_distutils_hack", "pkg_resources",
)  # fmt: skip
"""Packages that are not empty: PyTorch with what it imports, and msgspec."""

OWN: Final = frozenset({*sys.stdlib_module_names, *INSTALLED, "sglang", "cachesim", "conformance"})

CHUNK_FILES: Final = tuple(
    Path(f"sglang/{room}/attention/fla/chunk_delta_h.py") for room in ("srt/layers", "kernels/ops")
)
"""Files with a release's chunk size of the linear-attention kernel."""


class Stream:
    """A stream on which everything is done when it is submitted."""

    def __init__(self, *_: Real, **__: Real) -> None:
        pass

    def synchronize(self, *_: Real) -> None:
        """Return at once."""

    wait_stream = wait_event = record_event = synchronize


class Event:
    """A copy between device and host: done after `lag` queries, or when it is waited for."""

    lag = 0

    def __init__(self, *_: Real, **__: Real) -> None:
        self.queries = 0

    def record(self, *_: Real) -> None:
        self.queries = self.lag

    def query(self) -> bool:
        self.queries -= 1
        return self.queries < 0

    def wait(self, *_: Real) -> None:
        """Return at once."""

    synchronize = wait


def _is_missing(name: str) -> bool:
    top = name.partition(".")[0]
    if top not in OWN:
        return True
    within = any(name == each or name.startswith(f"{each}.") for each in EMPTY)
    return within and name not in REAL


def compile_nothing(function: Real = None, **_: Real) -> Real:
    """A decorator in place of `torch.compile`."""
    return function if function is not None else compile_nothing


def install(root: Path, *, tree_core: str = "python") -> None:
    """Make `import sglang.srt.managers.scheduler` work from an unpacked wheel.

    Functions of PyTorch are not compiled, memory is not pinned, and a workload chooses how long the
    events of copies take.
    """
    os.environ["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = tree_core
    sys.path.insert(0, str(root))
    torch: Real = importlib.import_module("torch")
    messages: Real = importlib.import_module("msgspec.msgpack")
    messages.Decoder = messages.Encoder = Nothing  # of types that are empty
    for name in ("torch.utils.cpp_extension", "msgspec.structs"):
        importlib.import_module(name)
    torch.compile = compile_nothing
    torch.distributed.get_world_size = lambda **_: 1
    torch.library.infer_schema = lambda *_, **__: "() -> ()"  # of kernels, which are empty
    torch.library.Library = Nothing
    torch.ops.sglang = Nothing()
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    torch.tensor = unpinned(torch.tensor)
    torch.cpu.Event, torch.cpu.Stream, torch.cpu.current_stream = Event, Stream, Stream
    torch.cpu.stream = lambda *_: Nothing()
    sys.meta_path.insert(0, EmptyModules(_is_missing))
    bare_packages(root, PACKAGES)
    language = importlib.import_module("triton.language")
    core = importlib.import_module("triton.language.core")
    vars(core).update(TRITON_MAX_TENSOR_NUMEL=1 << 20)
    vars(language).update(core=core)
    name_chunk_size(root)
    importlib.import_module("sglang.srt.managers.scheduler")


def name_chunk_size(root: Path) -> None:
    """Set the chunk size in the stub of the module that defines it."""
    for file in CHUNK_FILES:
        if (root / file).exists():
            named: Real = importlib.import_module(".".join(file.with_suffix("").parts))
            found = re.search(r"^CHUNK_SIZE = (\d+)$", (root / file).read_text(), re.MULTILINE)
            named.CHUNK_SIZE = int(found[1]) if found else None
