"""Advice of `why`, carried out: what it promises, and what the real server then saves.

    python -m conformance.end_to_end.advice --seed N [--lives 60] [--jobs 1] [--keep FOLDER]

With `--keep`, a life whose first run is in the folder is not played again: the same traffic tries
another version of the program.

A life is drawn from a seed: release, model, level of the log, flags, and clients of one kind. Most
flags are far from good (`POOR`), as those of a user who asks for advice. The log goes through the
installed program: through `why --tune`, and where that recommends a setting through `why`, which
also replays other releases, and whose numbers count. Then a second server is started with the
setting, and gets the same requests: the bodies that the first one got, in the same order. One that
goes out beside others does so when the one before it has its slot. A reply is greedy, and its
length is fixed; where it differs all the same, that is counted.

    promised   tokens that `why --format json` says are saved (`tuned`)
    saved      tokens prefilled by the first server less those of the second, as clients are told

Requests that go out together race for a slot. So a promise that is missed is tried once more on the
server as it was: if that run too differs from the first, the traffic is not steady, and says
nothing of the promise.

Two settings are named to `why`. The release, because wheels print build 0, where a user's server
prints its own; and the model's layers, because at the default level a file's name has to tell.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any, Final

from cachesim.prove.llama_cpp.calls import RealServerError
from cachesim.prove.llama_cpp.fitting import Abilities
from cachesim.prove.llama_cpp.gguf import write_model
from cachesim.prove.llama_cpp.server import RealServer, environment_for
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Model
from conformance.end_to_end.client import Answer, Call
from conformance.end_to_end.life import (
    AGENTS,
    DEFAULT,
    FOUR,
    PINNED,
    PRINTING,
    SECONDS_TO_WRITE,
    SEVERAL,
    THREADS,
    Group,
    draw_groups,
    draw_options_of_programs,
    send,
    talk_as_programs,
)
from conformance.end_to_end.program import load, run

RELEASES: Final = ("b9538", "b10566", "b11549")
MODELS: Final = ("dense", "hybrid", "recurrent", "swa")
KINDS: Final = (AGENTS, FOUR, SEVERAL, PINNED)

POOR: Final[Mapping[str, tuple[float, Sequence[Any]]]] = {
    "ubatch_size": (0.6, (64, 128, 256)),
    "ctx_checkpoints": (0.35, (1, 2, 3)),
    "checkpoint_min_step": (0.35, (512, 1024, 2048, 4096)),
    "cache_ram": (0.35, (1,)),
    "slot_prompt_similarity": (0.2, (0.5, 0.8)),
}
"""How often a flag is one of these, which cost tokens, instead of what `draw_options_of_programs`
drew.
"""

ONE_SLOT: Final[Mapping[str, float]] = {AGENTS: 0.5, FOUR: 0.7}
"""Part of the servers that have one slot for all conversations: clients wait for one another, so
that the log settles in which order they are read.
"""

SKIPPED: Final[Mapping[str, float]] = {"dense": 0.7}
"""Part of the lives that are not played: a model that keeps all tokens has little to gain."""

WITHIN: Final = 2
"""Percent of the prefilled tokens by which a promise may be missed."""

TRAFFIC: Final = "traffic.json"
"""File of a run's requests and answers, beside its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A server's flags, and the clients it has."""

    number: int
    release: str
    model: str
    verbosity: int
    kind: str
    options: Mapping[str, Any]
    seed: int

    @property
    def name(self) -> str:
        """The life in one line."""
        return f"{self.number} {self.release} {self.model} -lv {self.verbosity} {self.kind}"

    @property
    def rng(self) -> Random:
        return Random(f"advice {self.seed} {self.name}")


@dataclass(frozen=True, slots=True)
class Run:
    """What a server wrote, and what its clients were answered."""

    log: bytes
    traffic: tuple[Group, ...]
    answers: tuple[Answer, ...]

    def write(self, folder: Path) -> None:
        """The log, and beside it what was sent and answered."""
        (folder / "server.log").write_bytes(self.log)
        traffic = [[asdict(call) for call in group] for group in self.traffic]
        kept = {"traffic": traffic, "answers": [asdict(answer) for answer in self.answers]}
        (folder / TRAFFIC).write_text(json.dumps(kept), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """A run that was written there."""
        kept = json.loads((folder / TRAFFIC).read_text(encoding="utf-8"))
        traffic = tuple(tuple(Call(**call) for call in group) for group in kept["traffic"])
        answers = tuple(Answer.from_dict(answer) for answer in kept["answers"])
        return cls((folder / "server.log").read_bytes(), traffic, answers)

    @property
    def prefilled(self) -> int:
        """Prefilled tokens, as the clients are told them; further completions have none of their
        own: they take their parent's state.
        """
        return sum(answer.processed or 0 for answer in self.answers)


@dataclass(slots=True)
class Result:
    """One life's advice, and what came of it."""

    life: Life
    why: str = ""  # the reason for no advice, or for no comparison
    flags: str = ""
    prefilled: int = 0
    promised: int = 0
    saved: int = 0
    again: int | None = None  # prefilled tokens of the same server once more
    unlike: int = 0  # replies that differ

    @property
    def verdict(self) -> str:
        """The word for the table."""
        if self.why:
            return self.why
        if self.promised > 0 >= self.saved:
            kind = "WRONG SIGN"
        elif 100 * abs(self.promised - self.saved) > WITHIN * self.prefilled:
            kind = "MISSED"
        else:
            return "kept"
        return kind if self.again in (None, self.prefilled) else "not steady"


def draw_options(rng: Random, able: Abilities, kind: str) -> dict[str, Any]:
    """Flags of a server whose user asks for advice."""
    options = draw_options_of_programs(rng, able, kind)
    if rng.random() < ONE_SLOT.get(kind, 0.0):
        options |= {"parallel": 1, "ctx_size": 16384}
    for name, (often, values) in POOR.items():
        if rng.random() < often and able.has(name):
            options[name] = rng.choice(values)
    return options


def lives(seed: int) -> Iterator[Life]:
    """Every release, model, level and kind in turn, but those `SKIPPED`; flags are drawn."""
    every = [*product(RELEASES, MODELS, (DEFAULT, PRINTING), KINDS)]
    Random(f"advice {seed}").shuffle(every)
    number = 0
    while True:
        for release, model, verbosity, kind in every:
            rng = Random(f"advice flags {seed} {number}")
            skipped = SKIPPED.get(model, 0.0)
            if rng.random() >= skipped:
                yield Life(
                    number=number, release=release, model=model, verbosity=verbosity, kind=kind,
                    options=draw_options(rng, Abilities(release), kind), seed=seed,
                )  # fmt: skip
            number += 1


def played(
    life: Life, options: Mapping[str, Any], folder: Path, same: Sequence[Group] = ()
) -> Run | None:
    """A server's life: with the clients of the first one (`same`), or with new ones."""
    model = folder / f"{life.model}.gguf"
    if not model.exists():
        write_model(spec_of(Model(preset=life.model)), model)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "server.log"
        sent: list[Group] = []
        answers: list[Answer] = []
        try:
            with (
                RealServer(life.release, log=file, verbosity=life.verbosity) as real,
                real.started(options, model, threads=THREADS) as server,
            ):
                for number, group in enumerate(same):
                    answers += send(server.address, group, number, file)
                    sent.append(group)
                new = iter(()) if same else draw_groups(life.rng, life.kind, dict(life.options))
                for group, told in talk_as_programs(server.address, new, file):
                    answers += told
                    sent.append(group)
        except RealServerError:
            return None
        time.sleep(SECONDS_TO_WRITE)
        return Run(file.read_bytes(), tuple(sent), tuple(answers))


def tried(life: Life, keep: Path | None = None) -> Result:
    """Play a life, ask for advice, carry it out."""
    result = Result(life)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if keep:
            folder = keep / life.name.replace(" ", "_")
            folder.mkdir(parents=True, exist_ok=True)
        was_kept = (folder / TRAFFIC).exists()
        first = Run.read(folder) if was_kept else played(life, life.options, folder)
        if first is None:
            return replace(result, why="the server refuses its flags")
        if not was_kept:
            first.write(folder)
        result.prefilled = first.prefilled
        tuned: dict[str, Any] = {}
        for more in ("--tune",), ():
            words = ["why", *more, "server.log", "--format", "json", "--profile", life.release]
            ran = run([*words, "--model", life.model], folder)
            if ran.status:
                return replace(result, why=f"status {ran.status}: {ran.err.strip()[-100:]}")
            stated = json.loads(ran.out)
            tuned = stated if more else stated["tuned"]
            if tuned is None or not tuned["recommended"]["changes"]:
                return replace(result, why=f"no advice: {no_advice(tuned)}")
        result.flags = " ".join(tuned["recommended"]["flags"])
        result.promised = tuned["own"]["processed"] - tuned["recommended"]["processed"]
        if result.promised <= 0:
            return replace(result, why="no tokens promised: fewer requests fail")
        changed = {**life.options, **tuned["recommended"]["changes"]}
        second = played(life, changed, folder, first.traffic)
        if second is None:
            return replace(result, why="the server refuses the flags that were recommended")
        (folder / "carried-out.log").write_bytes(second.log)
        result.saved = first.prefilled - second.prefilled
        both = zip(first.answers, second.answers, strict=True)
        result.unlike = sum(one.text != other.text for one, other in both)
        if result.verdict != "kept":
            once_more = played(life, life.options, folder, first.traffic)
            result.again = once_more.prefilled if once_more else None
    return result


def no_advice(tuned: Mapping[str, Any] | None) -> str:
    """The reason, without its numbers, so that it can be counted."""
    if tuned is None:
        return "most requests are not reproduced"
    withheld = re.sub(r"^.*?: |`[^`]*`|--\S+( \d+)?|\d[\d,]*", "", tuned["withheld"])
    return " ".join(withheld.split()) or "no setting saves tokens"


def main(words: Sequence[str] | None = None) -> int:
    """Print a line for each life; 1 for a wrong sign, or more than 5 % missed promises."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.end_to_end.advice", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--advice", type=int, default=60, help="Pieces of advice to carry out.")
    parser.add_argument("--lives", type=int, default=400, help="Most lives that are played.")
    parser.add_argument("--start", type=int, default=0, help="The first life that is played.")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="Folder for logs; a first run there is read.")
    arguments = parser.parse_args(words)
    for release in RELEASES:
        environment_for(release).ready()
    load()
    counts: Counter[str] = Counter()
    carried_out = 0
    with ProcessPoolExecutor(arguments.jobs) as pool:
        drawn = islice(lives(arguments.seed), arguments.start, arguments.lives)
        running: set[Future[Result]] = set()
        while True:
            wanted = arguments.jobs - len(running) if carried_out < arguments.advice else 0
            running |= {pool.submit(tried, life, arguments.keep) for life in islice(drawn, wanted)}
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for result in (future.result() for future in done):
                counts[result.verdict] += 1
                carried_out += not result.why
                sys.stdout.write(line(result) + "\n")
                sys.stdout.flush()
    for verdict, count in counts.most_common():
        sys.stdout.write(f"{count:4}  {verdict}\n")
    wrong = counts["WRONG SIGN"]
    return int(wrong > 0 or counts["MISSED"] * 20 > carried_out)


def line(result: Result) -> str:
    """A life's line: promised and saved tokens of those prefilled."""
    numbers = ""
    if not result.why:
        again = "" if result.again is None else f", once more {result.again:,}"
        unlike = f", {result.unlike} replies differ" if result.unlike else ""
        numbers = (
            f": promised {result.promised:,}, saved {result.saved:,} of {result.prefilled:,} "
            f"({result.flags}){again}{unlike}"
        )
    return f"{result.verdict:10} {result.life.name} {dict(result.life.options)}{numbers}"


if __name__ == "__main__":
    sys.exit(main())
