"""Imports the Python files of an unpacked vLLM wheel on a machine without a GPU.

All of vLLM's own Python is the release's. Its compiled extensions are empty, and the outside
packages that only kernels, structured output or media need; the GPU only has a name, a size and a
capability. Runs in the worker.
"""

import ast
import importlib
import sys
from pathlib import Path
from typing import Final

from cachesim.prove.worker_side import EmptyModules, Real

OUTSIDE: Final = frozenset(
    (
        "anthropic", "blake3", "compressed_tensors", "cpuinfo", "depyf", "diskcache", "gguf",
        "ijson", "lark", "llguidance", "lmformatenforcer", "mistral_common",
        "model_hosting_container_standards", "numba", "outlines_core", "partial_json_parser",
        "prometheus_fastapi_instrumentator", "setproctitle", "soundfile", "uvicorn", "uvloop",
        "watchfiles", "xgrammar",
    )
)  # fmt: skip
"""Packages that no decision of the scheduler depends on."""

COMPILED: Final = frozenset(
    f"vllm.{name}"
    for name in (
        "_C",
        "_C_stable_libtorch",
        "_moe_C",
        "_moe_C_stable_libtorch",
        "_qutlass_C",
        "vllm_flash_attn",
    )
)
"""Extensions that need a GPU, and the package that is nothing without them."""

ABILITIES: Final = (
    "cutlass_group_gemm_supported",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp8",
)
"""Compiled code's queries about the GPU at import; an H100 supports all of them."""

MEMORY: Final = 80 << 30
"""Bytes of the GPU that is pretended to be there: an H100, by which vLLM picks its defaults."""

ARCHITECTURES: Final = (
    "LlamaForCausalLM", "EagleLlamaForCausalLM", "Qwen3NextForCausalLM", "Qwen3NextMTP",
    "Glm4MoeForCausalLM", "Glm4MoeMTPModel", "DeepseekV4ForCausalLM", "DeepSeekV4MTPModel",
)  # fmt: skip
"""The models whose configuration is written by `worker_settings`."""


def install(root: Path) -> None:
    """Make `import vllm...` work from an unpacked wheel, as on a machine with one GPU."""
    sys.path.insert(0, str(root))
    missing = EmptyModules(lambda name: name.partition(".")[0] in OUTSIDE or name in COMPILED)
    sys.meta_path.insert(0, missing)
    _pretend_gpu()
    known = _registered()
    for architecture in ARCHITECTURES:
        if architecture in known:  # DeepSeek V4 since 0.20
            _register(architecture, root)


def _pretend_gpu() -> None:
    platforms: Real = importlib.import_module("vllm.platforms")
    cuda: Real = importlib.import_module("vllm.platforms.cuda")
    interface: Real = importlib.import_module("vllm.platforms.interface")

    class Pretended(cuda.NonNvmlCudaPlatform):  # type: ignore[misc]
        """A stub of an H100: its properties alone."""

        @classmethod
        def get_device_capability(cls, *_: Real, **__: Real) -> Real:
            return interface.DeviceCapability(9, 0)

        @classmethod
        def get_device_name(cls, *_: Real, **__: Real) -> str:
            """The device's name, which picks tuned kernels."""
            return "NVIDIA H100 80GB HBM3"

        @classmethod
        def get_device_total_memory(cls, *_: Real, **__: Real) -> int:
            """The device's memory, which picks the default budget."""
            return MEMORY

        @classmethod
        def device_count(cls) -> int:
            return 1

        cuda_device_count = device_count

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            """False on a CPU; without pinned memory copies are equal, and slower."""
            return False

    operations: Real = importlib.import_module("torch").ops._C
    for ability in ABILITIES:
        setattr(operations, ability, lambda *_: True)
    platforms._current_platform = Pretended()
    configuration: Real = importlib.import_module("vllm.config.vllm")
    if hasattr(configuration, "HAS_TRITON"):  # a CPU has no driver for it
        configuration.HAS_TRITON = True


class _Model:
    """Methods of a model's class that the configuration calls: signatures and states."""

    def __init__(self, *, vllm_config: Real, prefix: str = "") -> None:
        del vllm_config, prefix

    def forward(self, input_ids: Real, positions: Real, intermediate_tensors: Real = None) -> None:
        """Compute nothing."""

    def compute_logits(self, hidden_states: Real) -> None:
        """Compute nothing."""

    def embed_input_ids(self, input_ids: Real) -> None:
        """Compute nothing."""

    def make_empty_intermediate_tensors(self, *given: Real) -> None:
        """Compute nothing."""

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: Real) -> Real:
        """A number for the convolution, and one for the state."""
        return (1, 1), (1, 1)

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: Real) -> Real:
        """The type of the attention cache."""
        torch: Real = importlib.import_module("torch")
        return torch.bfloat16, torch.bfloat16


def _register(architecture: str, root: Path) -> None:
    """A model class with the traits of the release's own, whose code imports kernels.

    The configuration asks a model for its traits alone: the base classes that `interfaces.py`
    defines, read from the class statement. A state is one number, so that a block of any size
    holds one.
    """
    models: Real = importlib.import_module("vllm.model_executor.models")
    interfaces: Real = importlib.import_module("vllm.model_executor.models.interfaces")
    module: Real = importlib.import_module("torch.nn").Module
    found = [getattr(interfaces, base, None) for base in _bases(architecture, root)]
    traits = tuple(each for each in found if each is not None)
    made = type(architecture, (_Model, module, *traits), {})
    models.ModelRegistry.register_model(architecture, made)


def _registered() -> dict[str, tuple[str, str]]:
    """Module and class of each architecture."""
    registry: Real = importlib.import_module("vllm.model_executor.models.registry")
    return {**registry._SPECULATIVE_DECODING_MODELS, **registry._TEXT_GENERATION_MODELS}


def _bases(architecture: str, root: Path) -> list[str]:
    name, own = _registered()[architecture]
    if name.startswith("vllm."):  # of its own folder, for each maker of GPUs
        sources = sorted(root.joinpath(*name.split("."), "nvidia").glob("*.py"))
    else:
        path = root.joinpath("vllm", "model_executor", "models", *name.lstrip(".").split("."))
        source = path.with_suffix(".py")
        sources = [source if source.exists() else path / "__init__.py"]
    for node in (node for source in sources for node in ast.parse(source.read_text()).body):
        if isinstance(node, ast.ClassDef) and node.name == own:
            return [ast.unparse(base) for base in node.bases]
    raise LookupError(f"{name} has no class {own}")
