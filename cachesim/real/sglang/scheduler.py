"""SGLang's real scheduler: Python files out of a release's wheel, in a process of its own."""

import re
from dataclasses import replace
from typing import Final

from cachesim.engines.sglang.family import FAMILY
from cachesim.real.schedules import RealScheduler
from cachesim.real.sglang.agents import draw_agents
from cachesim.real.sglang.playing import play
from cachesim.real.sglang.scenarios import config_of, group_of, hurdles
from cachesim.real.sglang.workloads import draw, draw_mixed

SCHEDULER: Final = RealScheduler(
    family=FAMILY,
    kept=re.compile(r"sglang/(srt/(?!models/|multimodal/).*|[a-z_]+)\.py"),
    worker="cachesim.real.sglang.scheduler_worker",
    flags="-I",
    draw=draw,
    play=play,
    config_of=config_of,
    hurdles=hurdles,
    group_of=group_of,
    shared=("evicted", "tree", "free"),
)
"""It runs with NumPy and its own files."""

MIXED: Final = replace(SCHEDULER, draw=draw_mixed)
"""The same, with `--enable-mixed-chunk`."""

AGENTS: Final = replace(SCHEDULER, draw=draw_agents)
"""The same, with the requests of coding agents."""
