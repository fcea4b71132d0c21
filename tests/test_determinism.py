"""The same run gives the same bytes, whatever the interpreter's hashes are seeded with."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

PROGRAM = """
import hashlib
import numpy as np
from cachesim.model.build import build
from cachesim.model.arithmetic import PlainStore
from cachesim.model.presets import PRESETS, tiny
from cachesim.model.trace import Traced
from cachesim.units import as_tokens
from cachesim.verify.oracle import Oracle, cold_logits

prompt = as_tokens(range(270, 310))
for name in PRESETS:
    for arithmetic in ("float", "ring"):
        network = build(tiny(name), arithmetic)
        traced = Traced(network)
        rows = cold_logits(traced, prompt)
        kept = Oracle(network).logits(prompt, as_tokens([300, 301]))
        nodes = [traced.node(row, i) for i, row in enumerate(rows)]
        digest = hashlib.sha256(rows.tobytes() + kept.tobytes() + repr(nodes).encode())
        print(name, arithmetic, network.sample(rows[-1]), digest.hexdigest())
"""


def output(seed: str) -> bytes:
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True
    )
    return done.stdout


def test_two_processes_with_different_hash_seeds_print_the_same_bytes() -> None:
    first, second = output("1"), output("2")

    assert 14 == len(first.splitlines())
    assert first == second
