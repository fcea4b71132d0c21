"""Rules of Ollama's runner, one field per difference."""

from dataclasses import dataclass

from cachesim.engines.llama_cpp_python.rules import MEMORY
from cachesim.engines.llamacpp.memory.rules import MemoryRules


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerRules:
    """Rules of Ollama's caches (`kvcache`)."""

    memory: MemoryRules = MEMORY
    """Rules of the llama.cpp that stands for its caches."""

    window: int = 0
    """Tokens that window layers keep; one window at least (`NewSWAMemCache`)."""

    llama: bool = False
    """llama.cpp's memory decides, and each batch waits for its tokens (`runner/llamarunner`)."""
