"""vLLM's real scheduler: Python files out of a release's wheel, in a process of its own."""

import re
from dataclasses import replace
from typing import Final

from cachesim.engines.vllm.family import FAMILY
from cachesim.real.schedules import RealScheduler
from cachesim.real.vllm.agents import draw_agents
from cachesim.real.vllm.playing import play
from cachesim.real.vllm.scenarios import config_of, group_of, hurdles
from cachesim.real.vllm.workloads import draw, draw_async

SCHEDULER: Final = RealScheduler(
    family=FAMILY,
    kept=re.compile(r"vllm/(v1|utils)/.*\.py|vllm/distributed/kv_events\.py"),
    worker="cachesim.real.vllm.scheduler_worker",
    flags="-IS",
    draw=draw,
    play=play,
    config_of=config_of,
    hurdles=hurdles,
    group_of=group_of,
    shared=("evicted", "cache", "queue"),
)
"""It runs with no package but its own files."""

ASYNC: Final = replace(SCHEDULER, draw=draw_async)
"""The same, with asynchronous scheduling."""

AGENTS: Final = replace(SCHEDULER, draw=draw_agents)
"""The same, with the requests of coding agents."""
