"""Lives of real llama.cpp servers: a server starts, answers some clients, and leaves its log.

A life is drawn from a seed: model, flags, and 3 to 12 requests; some come two or three at once,
some clients leave in the middle, some servers are started again. The clients' answers are kept
beside the log.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.prove.llama_cpp.calls import RealServerError
from cachesim.prove.llama_cpp.fitting import Abilities
from cachesim.prove.llama_cpp.flags import draw_preset
from cachesim.prove.llama_cpp.gguf import write_model
from cachesim.prove.llama_cpp.server import RealServer
from cachesim.prove.llama_cpp.workload import Outcome
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Model, Step
from conformance.end_to_end.client import Answer, Call, post
from conformance.end_to_end.talk import WORD, Talk, Talker

DEFAULT, PRINTING = 3, 4
"""`-lv`: unasked, and the level at which October's servers print lines of their caches."""

SECONDS_TO_WRITE: Final = 0.04
"""Until the server's own thread has written what it logs."""

SECONDS_TO_NOTICE: Final = 0.03
"""Until a server has noticed that a client left."""

CHAT, COMPLETION, TEXT = "/v1/chat/completions", "/completion", "/v1/completions"
MESSAGES, EMBEDDINGS = "/v1/messages", "/v1/embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A server's log, and its clients' answers."""

    name: str
    release: str
    verbosity: int
    preset: str
    window: int
    options: dict[str, Any]
    kinds: tuple[str, ...]
    log: bytes
    answers: tuple[Answer, ...]

    @property
    def prints(self) -> bool:
        """True at the verbosity that prints a line for each look into a cache."""
        return self.verbosity >= PRINTING

    def flags(self) -> list[str]:
        """The user's settings, as options of `why`."""
        said = ["--profile", self.release, "--model", self.preset]
        if self.window:
            said += ["--window", str(self.window)]
        for name, value in self.options.items():
            if name != "spec_type":
                word = str(value).lower() if isinstance(value, bool) else str(value)
                said += ["--set", f"{name}={word}"]
        return said

    def truth(self) -> dict[str, Any]:
        """The record beside the log."""
        return {
            "name": self.name,
            "release": self.release,
            "verbosity": self.verbosity,
            "preset": self.preset,
            "window": self.window,
            "options": self.options,
            "kinds": list(self.kinds),
            "answers": [answer.as_dict() for answer in self.answers],
        }

    @classmethod
    def from_truth(cls, truth: dict[str, Any], log: bytes) -> "Life":
        told = {**truth, "kinds": tuple(truth["kinds"])}
        answers = tuple(Answer.from_dict(each) for each in told.pop("answers"))
        return cls(**told, log=log, answers=answers)


def draw_options(rng: Random, able: Abilities, preset: str) -> dict[str, Any]:
    """Flags as people set them: most are left alone."""
    slots = rng.choices((1, 2, 3, 4), (45, 25, 12, 18))[0]
    options: dict[str, Any] = {
        "parallel": slots,
        "ctx_size": rng.choice((1024, 2048, 4096)) * slots,
    }
    if slots > 1 and rng.random() < 0.4:
        options |= {"kv_unified": True, "ctx_size": options["ctx_size"] // slots * 2}
    rare: dict[str, Sequence[Any]] = {
        "cache_ram": (0, 1, 2),
        "ctx_checkpoints": (0, 1, 3, 8),
        "checkpoint_min_step": (0, 16, 64),
        "checkpoint_every_nt": (40, 100),
        "ubatch_size": (64, 128),
        "slot_prompt_similarity": (0.0, 0.5),
        "cache_reuse": (4, 16),
        "context_shift": (True,),
        "cache_idle_slots": (False,),
    }
    for name, values in rare.items():
        if rng.random() < 0.15 and able.has(name):
            options[name] = rng.choice(values)
    if preset in {"swa", "hybrid-swa"} and rng.random() < 0.15:
        options["swa_full"] = True
    if preset == "hybrid-mtp":
        options["spec_type"] = "draft-mtp"
    elif rng.random() < 0.05:
        options["embedding"] = True
        if preset != "hybrid-swa" and rng.random() < 0.5:
            options["pooling"] = "last"
    return options


class Asked(Protocol):
    @property
    def address(self) -> str: ...

    @property
    def lost(self) -> bool:
        """True if its further answers are undefined."""
        ...

    def send(self, group: Sequence[Step]) -> tuple[Outcome, ...]:
        """Do something to the server itself, as starting it again."""
        ...


class Client:
    """One life's requests, drawn as its answers come in."""

    def __init__(self, rng: Random, server: Asked, options: dict[str, Any]) -> None:
        self._rng = rng
        self._server = server
        slots = options["parallel"]
        share = options["ctx_size"] if options.get("kv_unified") else options["ctx_size"] // slots
        self._talker = Talker(rng, min(900, share - 64) // (2 if options.get("kv_unified") else 1))
        self._embeds = options.get("embedding", False)
        self._pools = "pooling" in options
        self._several = slots > 1
        self._path = rng.choices((CHAT, COMPLETION, TEXT, MESSAGES), (50, 30, 10, 10))[0]
        self._streams = rng.random() < 0.5
        self.answers: list[Answer] = []
        self.kinds = {"embeddings" if self._embeds else self._path.rpartition("/")[2]}

    def live(self) -> None:
        wanted, group = self._rng.randint(3, 12), 0
        while len(self.answers) < wanted and not self._server.lost:
            if self.answers and self._rng.random() < 0.05:
                self.kinds.add("restart")
                self._server.send((Step(name="again", do="restart"),))
            self._send(group)
            group += 1

    def _send(self, group: int) -> None:
        """Send one request, or two or three at once."""
        chance, count = self._rng.random(), 1
        if chance < (0.2 if self._several else 0.08):
            count = self._rng.choice((2, 2, 3))
            self.kinds.add("at once")
        asked = [self._drawn() for _ in range(count)]
        if count == 1:
            answers = [post(self._server.address, asked[0][0], group)]
        else:
            with ThreadPoolExecutor(count) as pool:
                waiting = [
                    pool.submit(post, self._server.address, call, group) for call, _ in asked
                ]
                answers = [future.result() for future in waiting]
        for (_, talk), answer in zip(asked, answers, strict=True):
            self.answers.append(answer)
            if answer.status != 200:
                self.kinds.add("refused")
            if answer.cancelled:
                self.kinds.add("cancelled")
            if talk is not None:
                self._talker.answered(talk, answer.text)
        if any(each.cancelled for each in answers) and self._rng.random() < 0.7:
            time.sleep(SECONDS_TO_NOTICE)

    def _drawn(self) -> tuple[Call, Talk | None]:
        rng = self._rng
        if self._embeds and rng.random() < 0.8:
            text = self._talker.words(0.15)
            if self._pools:  # OpenAI's form needs one row for each text
                return Call(path=EMBEDDINGS, body={"input": text}), None
            return Call(path="/embedding", body={"content": text}), None
        talk = self._talker.next()
        leaves = rng.choice((1, 1, 2, 4)) if rng.random() < 0.1 else None
        predict = rng.choice((1, 4, 12, 30)) if leaves is None else 400
        path = self._path if rng.random() < 0.9 else COMPLETION
        body: dict[str, Any] = {
            "temperature": 0,
            "max_tokens": predict,
            "n_predict": predict,
            "ignore_eos": True,
            "timings_per_token": True,
            "return_progress": True,
        }
        if leaves is not None or self._streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if rng.random() < 0.03:
            body["cache_prompt"] = False
        if path in {CHAT, MESSAGES}:
            messages = talk.all_messages()
            if path == MESSAGES and messages[0]["role"] == "system":
                body["system"] = messages.pop(0)["content"]
            body["messages"] = messages
        else:
            ids = [int(each[1:-1]) for each in WORD.findall(talk.text)]
            body["prompt"] = ids if rng.random() < 0.5 and path == COMPLETION else talk.text
        delay = rng.choice((0.0, 0.001, 0.004))
        return Call(path=path, body=body, leave_after=leaves, delay=delay), talk


class Lives(AbstractContextManager["Lives"]):
    """Plays lives on the real servers of one release at one verbosity."""

    def __init__(self, release: str, verbosity: int) -> None:
        self.release = release
        self.verbosity = verbosity
        self._folder = TemporaryDirectory(prefix="cachesim-lives-")
        self._file = Path(self._folder.name) / "server.log"
        self._real = RealServer(release, log=self._file, verbosity=verbosity)

    def __exit__(self, *_: object) -> None:
        self._real.close()
        self._folder.cleanup()

    def play(self, seed: int, number: int) -> Life | None:
        """One life; None where the server refuses the flags that were drawn."""
        name = f"{self.release}-lv{self.verbosity}-{seed}-{number}"
        rng = Random(f"life {name}")
        able = Abilities(self.release)
        preset, window = draw_preset(rng, abilities=able)
        options = draw_options(rng, able, preset)
        before = self._file.stat().st_size if self._file.exists() else 0
        try:
            with self._real.started(options, self._model(preset, window, number)) as server:
                client = Client(rng, server, options)
                client.live()
        except RealServerError:
            return None
        time.sleep(SECONDS_TO_WRITE)
        with self._file.open("rb") as file:
            file.seek(before)
            log = file.read()
        return Life(
            name=name,
            release=self.release,
            verbosity=self.verbosity,
            preset=preset,
            window=window,
            options=options,
            kinds=tuple(sorted(client.kinds)),
            log=log,
            answers=tuple(client.answers),
        )

    def _model(self, preset: str, window: int, number: int) -> Path:
        """The model's file; its name describes the model in two lives of four.

        Lives at one verbosity may be every second one, and have models of both names.
        """
        folder = Path(self._folder.name) / f"{preset}-{window}"
        path = folder / (f"{preset}-{window}.gguf" if number % 4 < 2 else "model.gguf")
        if not path.exists():
            folder.mkdir(exist_ok=True)
            write_model(spec_of(Model(preset=preset, window=window or None)), path)
        return path


def releases() -> tuple[str, ...]:
    return FAMILY.real()


def shares(count: int) -> Iterator[tuple[str, int, range]]:
    """So many lives, divided evenly among all releases at both verbosities."""
    levels = [(DEFAULT, PRINTING), (PRINTING, DEFAULT)]  # half as many lives meet both levels
    columns = [
        (release, level) for at, release in enumerate(releases()) for level in levels[at % 2]
    ]
    for at, (release, level) in enumerate(columns):
        yield release, level, range(count * at // len(columns), count * (at + 1) // len(columns))
