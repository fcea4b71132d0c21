"""Public test tools: strategies, a state machine, laws for other caches, a search."""

from cachesim.testing.laws import BrokenLawError, MemoryUnderTest, VacuousCheckError, check_memory
from cachesim.testing.machine import CacheMachine
from cachesim.testing.prompt_cache_laws import (
    PromptCacheReport,
    PromptCacheUnderTest,
    State,
    check_prompt_cache,
)
from cachesim.testing.search import Counterexample, Report, search
from cachesim.testing.workloads import (
    model_specs,
    option_sets,
    register,
    scenarios,
    token_lists,
    workloads,
)

__all__ = [
    "BrokenLawError",
    "CacheMachine",
    "Counterexample",
    "MemoryUnderTest",
    "PromptCacheReport",
    "PromptCacheUnderTest",
    "Report",
    "State",
    "VacuousCheckError",
    "check_memory",
    "check_prompt_cache",
    "model_specs",
    "option_sets",
    "register",
    "scenarios",
    "search",
    "token_lists",
    "workloads",
]
