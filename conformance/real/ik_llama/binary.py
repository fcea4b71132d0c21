"""A running server of ik_llama.cpp, from a binary: its command line, its calls, its answers."""

import json
import math
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from cachesim.engines.chat import BYTES, FIRST_BYTE
from cachesim.engines.ik_llama.family import FAMILY
from cachesim.engines.ik_llama.options import FIELDS
from cachesim.errors import CachesimError, OptionError
from cachesim.model import recall
from cachesim.model.presets import preset
from cachesim.prove.llama_cpp.gguf import word
from cachesim.prove.llama_cpp.workload import CRASH, Outcome
from cachesim.scenario.format import Step
from cachesim.units import Token, as_tokens
from cachesim.why.infer.settings import flag_of

SECONDS_TO_START: Final = 60.0
SECONDS_FOR_ONE_CALL: Final = 300.0
SECONDS_FOR_AN_ACTION, TRIES = 10.0, 3

IDLE: Final = "all slots are idle"
"""The log's line after which a request may come.

The first time that a server is idle, it empties its whole cache (`slots_idle`, `clean_kv_cache`),
but no slot's list of tokens. A request that arrives before, at once after `/health`, leaves a list
without cells, and the next request reuses what is not there: a wrong answer (`first-request`).
"""

LAUNCHED: Final = "slot is processing task"

BYTE_TOKENS: Final = range(FIRST_BYTE, FIRST_BYTE + BYTES)


def _text(token: int, texts: Mapping[int, str] = MappingProxyType({})) -> str:
    """A token's text in a reply; a byte is one character."""
    return chr(token - FIRST_BYTE) if token in BYTE_TOKENS else word(token, texts)


TOKENS: Final = {
    **{_text(token, recall.TEXTS): Token(token) for token in recall.TEXTS},
    **{_text(token): Token(token) for token in range(FIRST_BYTE, preset("dense").vocabulary)},
}
"""The token of a text, of words that are numbered and of words that recall facts."""

OURS: Final = frozenset(option.name for option in FIELDS if option.internal)
"""Fields of a request that say when it comes or leaves; no server knows them."""

DRAFTS: Final = {"draft_max": "n_max", "draft_min": "n_min", "draft_p_min": "p_min"}


class BinaryError(CachesimError):
    """The binary is no server of ik_llama.cpp, does not start, or contradicts itself."""


def arguments(options: Mapping[str, Any], release: str) -> list[str]:
    """The options of a scenario as the command line of a commit."""
    given, words = dict(options), []
    companion = given.pop("companion", "none")
    if companion == "strict_tail":
        raise OptionError("companion = 'strict_tail' is a what-if: no server has such a companion")
    given.pop("companion_window", None)  # the model's
    drafts = {key: given.pop(name) for name, key in DRAFTS.items() if name in given}
    if companion != "none":
        words += flag_of(FAMILY, "companion", companion, release).split()
        if "--spec-type" in words and drafts:
            stage = ",".join(f"{key}={value}" for key, value in drafts.items())
            words[words.index("--spec-type") + 1] += f":{stage}"
        else:
            for name, key in DRAFTS.items():
                if key in drafts:
                    words += flag_of(FAMILY, name, drafts[key], release).split()
    for name, value in given.items():
        words += flag_of(FAMILY, name, value, release).split()
    return words


@dataclass(slots=True)
class Server:
    """A server process; `with` ends it."""

    binary: Path
    model: Path
    words: list[str]
    folder: Path  # for slot files and the log
    probabilities: int = 0
    texts: Mapping[int, str] = field(default_factory=dict)  # of a model that recalls facts
    early: bool = False  # a request comes before the server is idle for the first time
    process: "subprocess.Popen[bytes] | None" = None
    port: int = 0

    def __enter__(self) -> Self:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        line = [
            str(self.binary.resolve()), "-m", str(self.model), "--host", "127.0.0.1", "--port",
            str(self.port), "-t", "1", "-tb", "1", "--slot-save-path", f"{self.folder}/",
            *self.words,
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                line, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder
            )
        until = time.monotonic() + SECONDS_TO_START
        while self.early and time.monotonic() < until and not self.lost:
            with socket.socket() as client:  # a connection waits until the model is loaded
                if client.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.01)
        while time.monotonic() < until and not self.lost:
            try:
                urllib.request.urlopen(f"{self._address}/health", timeout=2).close()  # noqa: S310 - http
            except OSError:
                time.sleep(0.05)
                continue
            if IDLE in self.log.read_text(errors="replace"):
                return self
            time.sleep(0.01)
        self._end()
        last = self.log.read_text(errors="replace").strip().splitlines()[-3:]
        raise BinaryError(f"{self.binary} does not start with {' '.join(line[1:])}: {last}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def log(self) -> Path:
        return self.folder / f"server-{self.port}.log"

    @property
    def _address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def lost(self) -> bool:
        """True if the process has ended."""
        return self.process is None or self.process.poll() is not None

    @property
    def came_early(self) -> bool:
        """True if the first request was launched before the server was idle."""
        return IDLE not in self.log.read_text(errors="replace").partition(LAUNCHED)[0]

    def send(self, step: Step) -> Outcome:
        """One step's outcome; `drafted` counts tokens of the reply that were never sent."""
        if step.do == "complete":
            path, body = "/completion", self.body(step)
        else:
            path = f"/slots/{step.slot}?action={step.do.removeprefix('slot-')}"
            body = {"filename": step.file} if step.file else {}
        try:
            answer = self._post(path, body) if step.do == "complete" else self._act(path, body)
        except urllib.error.HTTPError as error:
            kind = json.load(error).get("error", {}).get("type", "server_error")
            return Outcome(error=str(kind))
        except OSError:
            time.sleep(0.3)
            return Outcome(error=CRASH if self.lost else "no answer")
        return self._outcome(step, answer) if step.do == "complete" else Outcome(slot=step.slot)

    def body(self, step: Step) -> dict[str, Any]:
        body = {
            "prompt": list(step.ids), "n_predict": step.predict, "temperature": 0,
            "ignore_eos": True, "cache_prompt": step.cache_prompt,
            **{name: value for name, value in step.options.items() if name not in OURS},
        }  # fmt: skip
        if step.slot >= 0:
            body["id_slot"] = step.slot
        if step.forced and isinstance(step.reply, tuple):
            # A grammar that allows this text, without the bytes that would spell it too.
            literal = json.dumps("".join(_text(each, self.texts) for each in step.reply))
            body["grammar"] = f"root ::= {literal}"
            body["logit_bias"] = [
                [token, False] for token in BYTE_TOKENS if token not in step.reply
            ]
        if self.probabilities:
            body["n_probs"] = self.probabilities
        return body

    def _act(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A slot action, which may be repeated.

        The server queues it before its thread waits for the result. If the action is done by then,
        the result is dropped, and the thread waits without end.
        """
        for _ in range(TRIES):
            with suppress(TimeoutError):
                return self._post(path, body, SECONDS_FOR_AN_ACTION)
        return self._post(path, body)

    def _post(
        self, path: str, body: Mapping[str, Any], seconds: float = SECONDS_FOR_ONE_CALL
    ) -> dict[str, Any]:
        head = {"Content-Type": "application/json"}
        data, where = json.dumps(body).encode(), f"{self._address}{path}"
        request = urllib.request.Request(where, data, head)  # noqa: S310 - http
        with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310 - http
            found: dict[str, Any] = json.load(answer)
        return found

    @staticmethod
    def _outcome(step: Step, answer: Mapping[str, Any]) -> Outcome:
        timings, truncated = answer["timings"], bool(answer.get("truncated"))
        rows = answer.get("completion_probabilities", ())
        written = [row["content"] for row in rows] or re.findall(r"\[\d+\]", answer["content"])
        reply = as_tokens([TOKENS[each] for each in written])
        processed = timings["prompt_n"]
        return Outcome(
            cached=None if truncated else len(step.ids) - processed,  # it reports what it processed
            processed=processed,
            reply=reply,
            slot=answer["id_slot"],
            truncated=truncated,
            drafted=max(0, timings["predicted_n"] - len(reply)),
            top=tuple(map(_row, rows)),
        )


def _row(entry: Mapping[str, Any]) -> dict[Token, float]:
    """The likeliest tokens of a row, by logarithm; texts of other tokens are left out."""
    found = {}
    for prob in entry.get("probs") or entry.get("top_logprobs") or ():
        token = TOKENS.get(prob.get("tok_str", prob.get("token", "")))
        given = prob.get("prob")
        log = prob.get("logprob", -math.inf) if given is None else math.log(max(given, 1e-30))
        if token is not None:
            found[token] = log
    return found
