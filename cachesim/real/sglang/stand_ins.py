"""Imports the scheduler of an unpacked SGLang wheel without anything that it would drag in.

Scheduler, batches, policies, pools, allocators, trees and settings are the release's own. What is
not of them is empty: kernels, models, layers, web servers, and every package outside. torch and
msgspec are small stand-ins that do what the scheduler needs of them. Runs in the worker.
"""

import importlib
import importlib.machinery
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

from cachesim.real.empty_modules import EmptyModules, bare_packages
from cachesim.real.sglang import rust_core, structs, tensors

Real = Any

EMPTY: Final = (
    "sglang.jit_kernel",
    "sglang.kernels",
    "sglang.srt.configs",
    "sglang.srt.constrained",
    "sglang.srt.debug_utils",
    "sglang.srt.distributed",
    "sglang.srt.entrypoints",
    "sglang.srt.eplb",
    "sglang.srt.hardware_backend",
    "sglang.srt.layers",
    "sglang.srt.lora",
    "sglang.srt.model_loader",
    "sglang.srt.models",
    "sglang.srt.multimodal",
    "sglang.srt.observability",
    "sglang.srt.parser",
    "sglang.srt.sampling.penaltylib",
    "sglang.srt.sampling.sampling_batch_info",
    "sglang.srt.tracing",
    "sglang.srt.utils.hf_transformers_patches",
    "sglang.srt.utils.hf_transformers_utils",
    "sglang.srt.weight_sync",
)
"""Parts of the release that no decision needs."""

REAL: Final = (
    "sglang.srt.configs.mamba_utils",
    "sglang.srt.layers.attention.base_attn_backend",
    "sglang.srt.layers.attention.hybrid_linear_attn_backend",
    "sglang.srt.layers.attention.mamba.mamba2_metadata",
    "sglang.srt.layers.attention.mamba.prefill_track_metadata",
)
"""What of them is the release's own all the same."""

PACKAGES: Final = (
    "sglang",
    "sglang.srt.configs",
    "sglang.srt.layers",
    "sglang.srt.layers.attention",
    "sglang.srt.layers.attention.mamba",
)
"""Packages that only lead to others; their own `__init__` is not run."""

OWN: Final = frozenset({*sys.stdlib_module_names, "sglang", "numpy", "cachesim"})

CHUNK_FILES: Final = tuple(
    Path(f"sglang/{room}/attention/fla/chunk_delta_h.py") for room in ("srt/layers", "kernels/ops")
)
"""Where a release has the tokens that a linear-attention kernel takes at once."""


def _is_missing(name: str, *, installed: bool) -> bool:
    top = name.partition(".")[0]
    if top not in OWN:  # beside PyTorch is what PyTorch needs
        return not installed or importlib.machinery.PathFinder.find_spec(top) is None
    within = any(name == each or name.startswith(f"{each}.") for each in EMPTY)
    return within and name not in REAL


def install(root: Path, *, tree_core: str = "python") -> None:
    """Make `import sglang.srt.managers.scheduler` work from an unpacked wheel.

    The tree core in Rust runs with the real PyTorch, that in Python with stand-ins for it.
    """
    os.environ["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = tree_core
    sys.path.insert(0, str(root))
    rust = tree_core == "rust"
    torch = rust_core.install_torch() if rust else tensors.install()
    sys.meta_path.insert(0, EmptyModules(partial(_is_missing, installed=rust)))
    structs.install()
    bare_packages(root, PACKAGES)
    language = importlib.import_module("triton.language")
    core = importlib.import_module("triton.language.core")
    vars(core).update(TRITON_MAX_TENSOR_NUMEL=1 << 20)
    vars(language).update(core=core)
    name_chunk_size(root)
    importlib.import_module("sglang.srt.managers.scheduler")
    if not rust:
        torch.sealed = True


def name_chunk_size(root: Path) -> None:
    """Put the number into the empty module that stands for its file."""
    for file in CHUNK_FILES:
        if (root / file).exists():
            named: Real = importlib.import_module(".".join(file.with_suffix("").parts))
            found = re.search(r"^CHUNK_SIZE = (\d+)$", (root / file).read_text(), re.MULTILINE)
            named.CHUNK_SIZE = int(found[1]) if found else None
