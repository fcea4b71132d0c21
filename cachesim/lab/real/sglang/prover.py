"""Proof of a finding by the scheduler and the model runner of a SGLang release."""

from typing import Final

from cachesim.lab.real.proving import Prove, by_metadata
from cachesim.lab.real.sglang.rows import differs_in
from cachesim.lab.real.sglang.scheduler import SCHEDULER

PROVE: Final[Prove] = by_metadata(SCHEDULER.play_scenario, differs_in)
