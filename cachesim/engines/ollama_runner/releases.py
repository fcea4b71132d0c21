"""Releases of Ollama's runner, and its kinds of server as patches."""

from typing import Final

from cachesim.engines.family import Patch, Release, laying
from cachesim.engines.ollama_runner.rules import RunnerRules

RELEASES: Final = (
    Release(
        name="0.24",
        about="its own caches (runner/ollamarunner); from 0.30 on Ollama starts llama-server",
        rules=RunnerRules(),
        upstream="v0.24.0",
    ),
)

PATCHES: Final[tuple[Patch[RunnerRules], ...]] = (
    Patch(
        name="llamarunner",
        server=True,
        about="its runner of llama.cpp's models and memory (runner/llamarunner)",
        fits=("0.24",),
        lay=laying(llama=True),
    ),
    Patch(
        name="memory",
        server=True,
        about="windows keep 4,096 tokens (gpt-oss)",
        fits=("0.24",),
        lay=laying(window=4096),
    ),
)
