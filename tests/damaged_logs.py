"""`python -m tests.damaged_logs [FIRST] [COUNT]`: so many damaged logs, each told or refused.

100,000 of them take half an hour of one core; the seed of one that fails is named.
"""

import json
import resource
import sys
import time
from io import BytesIO
from random import Random

from cachesim.errors import InputError
from cachesim.lab.logs.whole import Wanted, read_files, replays_of, why
from tests.logs.test_damaged import damaged, logs

EVERY = 5_000
"""Logs after which a line says how far it is."""


def main(first: int = 300_000, count: int = 100_000) -> int:
    """Play them; whatever else than an answer or a clear word comes of one is raised."""
    whole = logs()
    told, slowest, began = 0, 0.0, time.process_time()
    for done, seed in enumerate(range(first, first + count), 1):
        chance = Random(seed)
        log = damaged(chance.choice(whole), chance)
        before = time.process_time()
        try:
            told += is_told(log)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        slowest = max(slowest, time.process_time() - before)
        if done % EVERY == 0 or done == count:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            spent = time.process_time() - began
            sys.stdout.write(
                f"{done:,} logs: {told:,} told, {done - told:,} refused, slowest {slowest:.2f} s, "
                f"CPU {spent:.0f} s, {peak} MiB\n"
            )
            sys.stdout.flush()
    return 0


def is_told(log: bytes) -> bool:
    """Whether a log is told; otherwise it is refused by its name."""
    try:
        read = read_files([("damaged.log", BytesIO(log))])
        found = json.loads(json.dumps(why(read, replays_of(read, Wanted()))))
    except InputError as refused:
        if "damaged.log" not in str(refused):
            raise
        return False
    return bool(found["requests"])


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
