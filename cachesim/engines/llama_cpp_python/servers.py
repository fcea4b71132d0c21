"""The class of each server over llama.cpp's memory."""

from types import NoneType
from typing import Any, Final

from cachesim.engines.family import Family, Profile
from cachesim.engines.llama_cpp_python.koboldcpp import KoboldCpp
from cachesim.engines.llama_cpp_python.llama import LlamaCppPython
from cachesim.engines.llama_cpp_python.ollama import Ollama
from cachesim.engines.llama_cpp_python.options import Options
from cachesim.engines.llama_cpp_python.rules import KoboldRules, Rules, RunnerRules
from cachesim.engines.llama_cpp_python.server import MemoryServer

SERVERS: Final[dict[type, type[MemoryServer[Any]]]] = {
    NoneType: LlamaCppPython,
    RunnerRules: Ollama,
    KoboldRules: KoboldCpp,
}


def start(profile: Profile, *, family: Family[Rules, Options], **given: Any) -> MemoryServer[Any]:
    """An instance of `Llama`, or the server that a patch names."""
    return SERVERS[type(family.rules(profile).server)](profile, family=family, **given)
