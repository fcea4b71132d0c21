"""`python -m conformance.end_to_end.make`: the corpus as files, from seeds and real servers.

    python -m conformance.end_to_end.make FOLDER [--logs N] [--seed N]
    python -m conformance.end_to_end.make --kept

Each log is NAME.log beside NAME.json, which holds the flags of its server and what its clients
were answered. With --kept it writes the few dozen that the repository keeps, packed, for machines
without wheels: two lives of each release, one at each verbosity, logs of ik_llama.cpp and mlx-lm.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

from cachesim.engines.mlx_lm.family import FAMILY as MLX
from cachesim.prove.mlx_lm.process import environment_for
from conformance.end_to_end.client import Answer
from conformance.end_to_end.life import DEFAULT, PRINTING, Life, Lives, releases, shares
from conformance.end_to_end.other_logs import LEVELS, ik_life, mlx_life

KEPT: Final = Path(__file__).parent / "data"
KEPT_SEED: Final = 36
MOST: Final = 40_000
"""Bytes of a packed log that is kept; the next life is taken in place of a longer one."""

IK: Final = 4


def kept_lives() -> Iterator[Life]:
    """Two lives of each release: one at each verbosity, of different kinds."""
    for at, release in enumerate(releases()):
        for verbosity in (DEFAULT, PRINTING):
            with Lives(release, verbosity) as lives:
                for number in range(at, at + 50):
                    life = lives.play(KEPT_SEED, number)
                    if life is None or not any(answer.was_launched for answer in life.answers):
                        continue
                    if len(gzip.compress(life.log)) <= MOST:
                        yield life
                        break


def kept_others() -> Iterator[tuple[str, bytes, tuple[Answer, ...]]]:
    """Name, log and answers of servers of other engines."""
    for number in range(IK):
        log, answers = ik_life(Random(f"kept {number}"), as_json=number % 2 == 1)
        yield f"ik_llama.cpp-{number}", log, answers
    for level in LEVELS:
        release = MLX.real()[-1]
        python = environment_for(release).ready()
        log, answers = mlx_life(python, level, Random(f"kept {level}"))
        yield f"mlx-lm-{release}-{level}", log, answers


def kept() -> Iterator[Life]:
    """The lives in the repository."""
    for path in sorted(KEPT.glob("*-lv*.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found = json.load(file)
        yield Life.from_truth(found["truth"], found["log"].encode("utf-8", "surrogateescape"))


def kept_of_others() -> Iterator[tuple[str, bytes, tuple[Answer, ...]]]:
    """The other logs in the repository."""
    for path in sorted(KEPT.glob("*.json.gz")):
        if "-lv" in path.name:
            continue
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found = json.load(file)
        answers = tuple(Answer.from_dict(answer) for answer in found["answers"])
        yield path.name.removesuffix(".json.gz"), found["log"].encode(), answers


def _pack(name: str, content: object) -> None:
    data = json.dumps(content).encode("utf-8", "surrogateescape")
    (KEPT / f"{name}.json.gz").write_bytes(gzip.compress(data, mtime=0))


def write_all(folder: Path, *, logs: int, seed: int) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for release, verbosity, numbers in shares(logs):
        with Lives(release, verbosity) as lives:
            for number in numbers:
                life = lives.play(seed, number)
                if life is None:
                    continue
                (folder / f"{life.name}.log").write_bytes(life.log)
                truth = json.dumps(life.truth(), indent=1)
                (folder / f"{life.name}.json").write_text(truth + "\n", encoding="utf-8")
                count += 1
    return count


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.end_to_end.make", description=__doc__
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--logs", type=int, default=1040)
    parser.add_argument("--seed", type=int, default=20261122)
    arguments = parser.parse_args(words)
    if arguments.kept:
        KEPT.mkdir(exist_ok=True)
        for old in KEPT.glob("*.json.gz"):
            old.unlink()
        for life in kept_lives():
            log = life.log.decode("utf-8", "surrogateescape")
            _pack(life.name, {"truth": life.truth(), "log": log})
        for name, log_bytes, answers in kept_others():
            lines = log_bytes.decode("utf-8", "replace")
            _pack(name, {"answers": [answer.as_dict() for answer in answers], "log": lines})
        size = sum(path.stat().st_size for path in KEPT.iterdir())
        sys.stdout.write(f"{len(list(KEPT.iterdir()))} files, {size:,} bytes in {KEPT}\n")
    if arguments.folder is not None:
        count = write_all(arguments.folder, logs=arguments.logs, seed=arguments.seed)
        sys.stdout.write(f"{count} logs in {arguments.folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
