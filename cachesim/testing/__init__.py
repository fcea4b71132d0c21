"""Public test tools: strategies, a state machine, laws for other caches, a search."""

from cachesim.testing.contents import Request, Server
from cachesim.testing.contract import ContractReport, engine_contract
from cachesim.testing.laws import BrokenLawError, MemoryUnderTest, VacuousCheckError, check_memory
from cachesim.testing.live_cache import LiveCache, check_live_cache
from cachesim.testing.live_player import LiveCacheReport
from cachesim.testing.machine import CacheMachine
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
    "ContractReport",
    "Counterexample",
    "LiveCache",
    "LiveCacheReport",
    "MemoryUnderTest",
    "Report",
    "Request",
    "Server",
    "VacuousCheckError",
    "check_live_cache",
    "check_memory",
    "engine_contract",
    "model_specs",
    "option_sets",
    "register",
    "scenarios",
    "search",
    "token_lists",
    "workloads",
]
