"""Lives of real llama.cpp servers: a server starts, answers some clients, and leaves its log.

A life is drawn from a seed: model, flags, and the kind of clients. Half of the lives are of people:
3 to 12 requests; some come two or three at once, some clients leave in the middle, some servers are
started again. The other half are of programs (`KINDS`): agents with tools, four clients at once,
several completions of one prompt (`n`), and slots that the clients name (`id_slot`), busy or not.
The clients' answers are kept beside the log.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol, TypeAlias

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.prove.llama_cpp.calls import RealServerError
from cachesim.prove.llama_cpp.fitting import Abilities
from cachesim.prove.llama_cpp.flags import NO_FLAGS, draw_preset
from cachesim.prove.llama_cpp.gguf import write_model
from cachesim.prove.llama_cpp.server import RealServer
from cachesim.prove.llama_cpp.workload import Outcome
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Model, Step
from conformance.end_to_end.client import Answer, Call, post
from conformance.end_to_end.talk import WORD, Agents, Talk, Talker

DEFAULT, PRINTING = 3, 4
"""`-lv`: unasked, and the level at which October's servers print lines of their caches."""

SECONDS_TO_WRITE: Final = 0.04
"""Until the server's own thread has written what it logs."""

SECONDS_TO_NOTICE: Final = 0.03
"""Until a server has noticed that a client left."""

CHAT, COMPLETION, TEXT = "/v1/chat/completions", "/completion", "/v1/completions"
MESSAGES, EMBEDDINGS = "/v1/messages", "/v1/embeddings"

AGENTS, FOUR, SEVERAL, PINNED = "agents", "four clients", "several answers", "pinned slots"
BUSY: Final = "busy slots"
KINDS: Final = (AGENTS, FOUR, SEVERAL, PINNED, BUSY)
"""Kinds of clients that are programs; of the last two, each request names its slot."""

LONGEST: Final = {AGENTS: 6000, FOUR: 3000, SEVERAL: 4000, PINNED: 4000, BUSY: 4000}
"""Most tokens of a prompt."""

PATIENCE: Final = 0.5
"""Seconds until the next request of a group goes out, if the log does not show that one has a slot:
it waits for one.
"""

LIKELIEST: Final = 8
"""Tokens whose probabilities an uncached run returns, at each place of its reply."""

THREADS: Final = 8
"""HTTP threads: with the two of other comparisons, a third client waits outside of the server."""

Group: TypeAlias = tuple[Call, ...]
Drawn: TypeAlias = tuple[Agents, list[tuple[Talk, Call]]]


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
    sent: tuple[Call, ...] = ()  # the answers' requests; not kept beside the log

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


def draw_options_of_programs(rng: Random, able: Abilities, kind: str) -> dict[str, Any]:
    """Flags of a server for programs: half of the servers have their own defaults."""
    options: dict[str, Any] = dict(NO_FLAGS)
    if rng.random() < 0.6:
        slots = 4 if kind in {FOUR, SEVERAL} else rng.choice((1, 1, 2, 4))
        options = {"parallel": slots, "ctx_size": 16384 * slots}
    rare: dict[str, tuple[float, Sequence[Any]]] = {
        "ubatch_size": (0.25, (64, 128, 256)),
        "cache_ram": (0.5, (0, 1, 1, 2)),
        "ctx_checkpoints": (0.4, (1, 2)),
        "checkpoint_min_step": (0.25, (64, 256)),
        "slot_prompt_similarity": (0.1, (0.5,)),
    }
    for name, (often, values) in rare.items():
        if rng.random() < often and able.has(name):
            options[name] = rng.choice(values)
    return options


def draw_groups(rng: Random, kind: str, options: dict[str, Any]) -> Iterator[Drawn]:
    """Groups of requests of one kind, each drawn after the one before it was answered."""
    talker = Agents(rng, LONGEST[kind], tools=kind == AGENTS)
    for _ in range(5 if kind == FOUR else 12):
        together = 4 if kind == FOUR else 1
        if kind == BUSY:
            together = rng.choice((1, 1, 2, 3))
        drawn = []
        for _client in range(together):
            talk = talker.next()
            predict = 24 if kind in {FOUR, BUSY} else rng.choice((1, 4, 12))
            body: dict[str, Any] = {
                "temperature": 0, "seed": 1, "ignore_eos": True, "max_tokens": predict,
                "n_predict": predict,
            }  # fmt: skip
            if kind == SEVERAL and rng.random() < 0.4:
                body["n"] = rng.choice((2, 3))
            if kind in {PINNED, BUSY}:
                path, slots = COMPLETION, options["parallel"]
                body |= {"id_slot": rng.randrange(slots if slots > 0 else 4), "prompt": talk.text}
            else:
                path = CHAT
                body["messages"] = [dict(message) for message in talk.all_messages()]
            if talk.tools:
                body["tools"] = talk.tools
            drawn.append((talk, Call(path=path, body=body)))
        yield talker, drawn


def send(address: str, group: Group, number: int, log: Path) -> list[Answer]:
    """The answers of a group, in its order: each call goes out when the last one has its slot."""
    with ThreadPoolExecutor(len(group)) as pool:
        waiting = []
        for call in group:
            before = _launches(log)
            waiting.append(pool.submit(post, address, call, number))
            ends = time.monotonic() + PATIENCE
            while call is not group[-1] and time.monotonic() < ends and _launches(log) == before:
                time.sleep(0.002)
        return [future.result() for future in waiting]


def _launches(log: Path) -> int:
    return log.read_bytes().count(b"processing task") if log.exists() else 0


def talk_as_programs(
    address: str, groups: Iterator[Drawn], log: Path
) -> Iterator[tuple[Group, list[Answer]]]:
    """Send the groups in turn: each with its answers, which the next ones go on from."""
    for number, (talker, drawn) in enumerate(groups):
        group = tuple(call for _, call in drawn)
        answers = send(address, group, number, log)
        for (talk, _), answer in zip(drawn, answers, strict=True):
            talker.answered(talk, answer.text)
        yield group, answers


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
        self.sent: list[Call] = []
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
        for (call, talk), answer in zip(asked, answers, strict=True):
            self.answers.append(answer)
            self.sent.append(call)
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
            messages = [dict(message) for message in talk.all_messages()]  # talks are edited
            if path == MESSAGES and messages[0]["role"] == "system":
                body["system"] = messages.pop(0)["content"]
            body["messages"] = messages
        else:
            ids = [int(each[1:-1]) for each in WORD.findall(talk.text)]
            body["prompt"] = ids if rng.random() < 0.5 and path == COMPLETION else talk.text
        delay = rng.choice((0.0, 0.001, 0.004))
        return Call(path=path, body=body, leave_after=leaves, delay=delay), talk


def alone(call: Call) -> Call:
    """A request that reuses nothing and leaves nothing open, and is answered with probabilities."""
    body = dict(call.body) | {"cache_prompt": False, "stream": False}
    body |= {"n_probs": LIKELIEST, "logprobs": LIKELIEST}
    for name in ("id_slot", "n", "stream_options"):
        body.pop(name, None)
    if call.path in {CHAT, MESSAGES}:
        body |= {"logprobs": True, "top_logprobs": LIKELIEST}
    if "system" in body:  # Anthropic's form has no probabilities
        body["messages"] = [{"role": "system", "content": body.pop("system")}, *body["messages"]]
    return Call(path=CHAT if call.path == MESSAGES else call.path, body=body)


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
        kind, options = "", {}
        if rng.random() < 0.5:
            kind = rng.choice(KINDS)
            options = draw_options_of_programs(rng, able, kind)
            options |= {"spec_type": "draft-mtp"} if preset == "hybrid-mtp" else {}
        else:
            options = draw_options(rng, able, preset)
        before = self._file.stat().st_size if self._file.exists() else 0
        answers: list[Answer] = []
        sent: list[Call] = []
        kinds = {kind}
        try:
            model = self._model(preset, window, number)
            threads = THREADS if kind else 0
            with self._real.started(options, model, threads=threads) as server:
                if kind:
                    groups = draw_groups(rng, kind, options)
                    for group, told in talk_as_programs(server.address, groups, self._file):
                        sent += group
                        answers += told
                else:
                    client = Client(rng, server, options)
                    client.live()
                    answers, sent, kinds = client.answers, client.sent, client.kinds
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
            kinds=tuple(sorted(kinds)),
            log=log,
            answers=tuple(answers),
            sent=tuple(sent),
        )

    def uncached(self, life: Life) -> tuple[Answer, ...]:
        """The answers of a fresh server that is told to reuse nothing, one request at a time."""
        model = self._model(life.preset, life.window, 2)
        with self._real.started(life.options, model, threads=THREADS) as server:
            return tuple(post(server.address, alone(call)) for call in life.sent)

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
