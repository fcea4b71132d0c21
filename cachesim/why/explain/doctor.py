"""What a log or a recording lacks for a full answer, and the lines that change it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import join, quote
from typing import Any, Final

from cachesim.engines import FAMILIES
from cachesim.engines.words import counted
from cachesim.why.explain.live import Live
from cachesim.why.explain.remedies import FACTS_WITHOUT_REPLAY
from cachesim.why.infer.settings import flag_of
from cachesim.why.read.dump import Recorded
from cachesim.why.read.observed import IK, LLAMA, MLX, OLLAMA, SGLANG
from cachesim.why.replay.replayed import Replay

RECORD: Final = "cachesim record --upstream http://127.0.0.1:8080 --listen 127.0.0.1:8081"
"""The recorder before a server; the client's base URL becomes http://127.0.0.1:8081."""

START: Final[Mapping[str, str]] = {
    LLAMA: "llama-server -m model.gguf -lv 4 --log-file server.log",
    IK: "llama-server -m model.gguf 2> server.log",
    MLX: "mlx_lm.server --model MODEL --log-level DEBUG 2> server.log",
    SGLANG: "python -m sglang.launch_server --model-path MODEL --enable-cache-report "
    "--log-requests --log-requests-level 3 --log-requests-format json 2> server.log",
    "vLLM": "VLLM_LOGGING_LEVEL=DEBUG vllm serve MODEL --enable-prompt-tokens-details "
    "--enable-log-requests --enable-log-outputs 2> server.log",
    OLLAMA: "ollama serve 2> server.log",
}
"""By server, the command whose log says most; your other flags stay."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact that a full answer needs: of how many it is known, and what to change."""

    what: str
    known: int
    of: int
    change: str

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON."""
        return {"what": self.what, "known": self.known, "of": self.of, "change": self.change}


def doctor_of_log(replays: Sequence[Replay], sources: Sequence[str]) -> dict[str, Any]:
    """The findings on a log, and the commands that give a full one."""
    replay = max(replays, key=lambda replay: len(replay.requests))
    engine = replay.settings.engine
    if not replay.settings.is_played:
        commands = [*filter(None, [START.get(engine)]), RECORD]
        return _report(sources, [], FACTS_WITHOUT_REPLAY[engine], commands)
    return _report(
        sources, list(_findings(replay)), "", [_start(replay), RECORD, _why(replay, sources)]
    )


def _findings(replay: Replay) -> Iterator[Finding]:
    log, settings = replay.log, replay.settings
    requests = [request for request in replay.requests if not request.observed.too_long]
    sure = sum(request.lengths.prompt.is_sure for request in requests)
    counts = sum(request.lengths.cached.value is not None for request in requests)
    common = sum(request.common.is_sure for request in requests)
    known = [option.how != "assumed" for option in settings.options.values()]
    whole = "keep the log from the server's first line on (`--log-file server.log`)"
    yield Finding("the server's start", log.begins_at_start, 1, whole)
    named = settings.release.how not in {"assumed", "bounded"}
    name = "name it with `--profile`"
    change = name if log.begins_at_start else f"{whole}, or {name}"
    yield Finding("the release", named, 1, change)
    yield Finding("flags that it prints", sum(known), len(known), "`-lv 4`, or `--set NAME=VALUE`")
    layers = settings.preset.how not in {"assumed", "bounded"}
    yield Finding("the model's layers", layers, 1, "`-lv 4`, or name them with `--model`")
    yield Finding("lengths of prompts", sure, len(requests), "`-lv 4`")
    yield Finding("cached tokens", counts, len(requests), "keep each request's lines to its end")
    yield Finding("what a prompt shares with its slot", common, len(requests), "`-lv 4`")
    verbose = sum(request.is_verbose for request in requests)
    yield Finding("checkpoints and memory", verbose, len(requests), "`-lv 4`")
    yield Finding("texts of prompts", 0, len(requests), "no log has them: `cachesim record`")


def _start(replay: Replay) -> str:
    """The server's command with the flags that its log shows."""
    settings = replay.settings
    family = FAMILIES["llama.cpp"]
    release = str(settings.release.value)
    flags = [
        flag_of(family, name, option.value, release)
        for name, option in settings.options.items()
        if option.how != "assumed"
    ]
    model = quote(settings.model_file or "model.gguf")
    return " ".join(["llama-server -m", model, *filter(None, flags), "-lv 4 --log-file server.log"])


def _why(replay: Replay, sources: Sequence[str]) -> str:
    """The command for this log with what only its user knows."""
    settings = replay.settings
    words = ["cachesim", "why", *sources]
    if settings.release.how in {"assumed", "bounded"}:
        words += ["--profile", str(settings.release.value)]
    if settings.preset.how in {"assumed", "bounded"}:
        words += ["--model", str(settings.preset.value)]
    for name, option in settings.options.items():
        if option.how == "assumed":
            words += ["--set", f"{name}={option.value}"]
    return join(words)


def doctor_of_dump(
    requests: Sequence[Recorded], live: Live, sources: Sequence[str]
) -> dict[str, Any]:
    """The findings on recorded requests."""
    answered = [request for request in requests if request.was_read]
    usage = 'ask for it: `"stream_options": {"include_usage": true}` where the client streams'
    cached = (
        "llama-server sends it; vLLM with `--enable-prompt-tokens-details`, SGLang with "
        "`--enable-cache-report`"
    )
    counts = {
        "prompt tokens": (sum(r.prompt_tokens is not None for r in answered), usage),
        "cached tokens": (sum(r.cached is not None for r in answered), cached),
        "exact tokens of prompts": (
            sum(bool(request.runs) for request in answered),
            "`cachesim record` asks a llama-server for them",
        ),
        "texts, or what changed in them": (
            sum(bool(r.seen) or any(s.text for s in r.segments) for r in answered),
            "`cachesim record` compares them",
        ),
    }
    findings = [Finding(what, known, len(answered), to) for what, (known, to) in counts.items()]
    is_named = live.profile_how not in {"assumed", "unknown"}
    findings.append(Finding("the server's release", is_named, 1, "name it with `--profile`"))
    return _report(sources, findings, "", [RECORD])


def doctor_of_nothing() -> dict[str, Any]:
    """The commands for each server."""
    commands = [f"{command}  # {server}" for server, command in START.items()]
    return _report([], [], "", [*commands, f"{RECORD}  # between client and server"])


def _report(
    sources: Sequence[str], findings: Sequence[Finding], says: str, commands: Sequence[str]
) -> dict[str, Any]:
    lacking = sum(finding.known < finding.of for finding in findings)
    if findings:
        says = f"{lacking} of {counted(len(findings), 'fact')} are missing, wholly or in part."
    return {
        "format": 1,
        "sources": list(sources),
        "findings": [finding.as_dict() for finding in findings],
        "says": says,
        "commands": list(commands) if lacking or not findings else [],
    }
