"""Imports SGLang's configuration out of an unpacked wheel, as on a machine with one GPU.

All of it is the release's. Empty are its kernels, quantizations and models, and the outside
packages that only they need; the GPU is one that only has a name, a size and a capability. Runs in
the worker, with PyTorch's CPU build.
"""

import importlib
import importlib.machinery
import pickle
import sys
from pathlib import Path
from typing import Any, Final

from cachesim.real.empty_modules import EmptyModules
from cachesim.real.sglang import stand_ins
from cachesim.real.worker_side import Bag

Real = Any  # modules, classes and objects of the release: known only when it runs

EMPTY: Final = (
    "sglang.jit_kernel",
    "sglang.kernels",
    "sglang.srt.entrypoints",
    "sglang.srt.layers",
    "sglang.srt.models",
)
"""Parts of the release that hold kernels or weights."""

NAME: Final = "NVIDIA H100 80GB HBM3"
MEMORY: Final = 80 << 30
"""Bytes of the GPU that is pretended to be there."""

CAPABILITY: Final = (9, 0)


def compile_nothing(function: Real = None, **_: Real) -> Real:
    """A decorator in place of `torch.compile`."""
    return function if function is not None else compile_nothing


class Modules(EmptyModules):
    """Empty modules for what the release itself imports; what PyTorch looks up is not there."""

    def __init__(self) -> None:
        super().__init__(_is_missing)


def _is_missing(name: str) -> bool:
    top = name.partition(".")[0]
    if top == "sglang":
        return name.startswith(EMPTY)
    return importlib.machinery.PathFinder.find_spec(top) is None and _importer() == "sglang"


def _importer() -> str:
    frame: Real = sys._getframe(1)
    while frame is not None:
        named = frame.f_globals.get("__name__", "")
        if not named.startswith(("importlib", "cachesim", "_frozen")):
            return str(named.partition(".")[0])
        frame = frame.f_back
    return ""


def install(root: Path) -> None:
    """Make `import sglang.srt.server_args` work from an unpacked wheel."""
    torch: Real = importlib.import_module("torch")
    transformers: Real = importlib.import_module("transformers")
    for name in ("AutoProcessor", "AutoTokenizer", "AutoConfig"):  # before anything is empty
        getattr(transformers, name)
    importlib.import_module("transformers.processing_utils")
    images = Bag(register=lambda *_, **__: None)  # they need another package
    vars(sys.modules["transformers"]).update(AutoImageProcessor=images)
    importlib.import_module("torch.utils.cpp_extension")
    torch.compile = compile_nothing
    vars(torch.cuda).update(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_device_name=lambda *_: NAME,
        get_device_capability=lambda *_: CAPABILITY,
        mem_get_info=lambda *_: (MEMORY, MEMORY),
        get_device_properties=lambda *_: Bag(
            name=NAME, major=9, minor=0, total_memory=MEMORY, multi_processor_count=132
        ),
    )
    torch.version.cuda = "12.9"
    sys.modules["dill"] = pickle
    sys.path.insert(0, str(root))
    sys.meta_path.insert(0, Modules())
    stand_ins.name_chunk_size(root)
    common: Real = importlib.import_module("sglang.srt.utils.common")
    common.get_nvgpu_memory_capacity = lambda: MEMORY >> 20
