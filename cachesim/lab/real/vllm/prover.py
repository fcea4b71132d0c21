"""Proof of a finding by the scheduler and the model runner of a vLLM release."""

from typing import Final

from cachesim.lab.real.proving import Prove, by_metadata
from cachesim.lab.real.vllm.scheduler import SCHEDULER
from cachesim.lab.real.vllm.steps import differs_in

PROVE: Final[Prove] = by_metadata(SCHEDULER.play_scenario, differs_in)
