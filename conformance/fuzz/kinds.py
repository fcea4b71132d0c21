"""The kinds of input that cachesim reads, each with seeds, a way to damage them, and a way to play.

A new kind of file is one more entry of `KINDS`; nothing else needs to know of it.
"""

import gzip
import json
import re
import struct
import tomllib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from cachesim.engines.base import Engine, Request
from cachesim.engines.ik_llama.options import Options as IkOptions
from cachesim.engines.llamacpp.options import Options
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.errors import InputError, UpstreamAbort
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import preset
from cachesim.play import run
from cachesim.play.session import SlotFiles
from cachesim.record.exchange import AnswerReader
from cachesim.record.session import numbers_of
from cachesim.report import json_output
from cachesim.report.consoles import plain_text
from cachesim.report.html import page
from cachesim.report.recorded import dump_report
from cachesim.report.story import story
from cachesim.report.tables import one_scenario
from cachesim.report.why import why_report
from cachesim.scenario import full_profile, loads, scenario_of
from cachesim.scenario.format import Expect, Model, Scenario, Step
from cachesim.scenario.shipped import shipped_files
from cachesim.units import as_tokens
from cachesim.why.explain.live import Live, report_of_dump, report_of_live
from cachesim.why.explain.report import worst as worst_of
from cachesim.why.explain.whole import UserSettings, read_files, replays_of
from cachesim.why.explain.whole import why as why_of
from cachesim.why.read.dump import is_dump
from conformance.fuzz.guard import READ
from conformance.fuzz.mutations import (
    OFTEN,
    SLIGHTLY,
    Chance,
    damaged_bytes,
    damaged_text,
    damaged_tree,
    varied,
)
from conformance.fuzz.of_models import (
    configs,
    damage_config,
    damage_header,
    damage_report,
    damage_state,
    headers,
    play_config,
    play_header,
    play_report,
    play_state,
    reports,
    states,
)
from conformance.fuzz.of_traces import (
    damage_plan,
    damage_trace,
    plans,
    play_plan,
    play_trace,
    toml,
    traces,
)
from conformance.real.vectors.replay import kind_of, line_of, played
from tests.dumps import read_dump

ROOT: Final = Path(__file__).parents[2]
AFFORDABLE: Final = 3_000
"""Tokens that a mutant is played with; larger ones are read and checked only."""

MOSTLY: Final = AFFORDABLE // 5
"""The same for seven of eight: most of what breaks breaks with few tokens, and sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    name: str
    share: int  # of a hundred mutants
    seeds: Callable[[], Sequence[Any]]
    damage: Callable[[Any, Chance], Any]
    play: Callable[[Any], str | None]  # `READ` of what is not played


@cache
def scenario_texts() -> tuple[str, ...]:
    return tuple(path.read_text() for path in shipped_files())


@cache
def option_names() -> tuple[str, ...]:
    """Every key that a scenario may hold, and every option of every engine."""
    values = (Scenario, Step, Expect, Model, Options, IkOptions, MlxOptions)
    names = {field.name for value in values for field in fields(value)}
    requests = {"stop_words", "message_spans", "n_keep", "n_discard", "return_tokens", "stop"}
    return tuple(sorted(names | requests))


@cache
def seeds_of_scenarios() -> tuple[dict[str, Any], ...]:
    return tuple([tomllib.loads(text) for text in scenario_texts()])


def damage_scenario(seed: Any, chance: Chance) -> tuple[Any, int]:
    if chance.random() < SLIGHTLY:
        return varied_scenario(seed, chance), chance.randrange(10**9)
    tree = damaged_tree(seed, chance, others=seeds_of_scenarios(), keys=option_names())
    return tree, chance.randrange(10**9)


def varied_scenario(seed: Mapping[str, Any], chance: Chance) -> dict[str, Any]:
    """Another scenario of the same keys: other lengths, options, prompts, steps.

    What is expected of other steps is left out; a step that is repeated has no name.
    """
    tree: dict[str, Any] = varied(dict(seed), chance)
    steps = [each for each in tree.get("step", ()) if isinstance(each, dict)]
    if steps and chance.random() < OFTEN:
        step = chance.choice(steps)
        for key in ("prompt", "messages"):
            if isinstance(words := step.get(key), str):
                step[key] = " ".join(varied(words.split(), chance)) or words
    names = [each.get("name") for each in steps]
    if names != [each.get("name") for each in seed.get("step", ())]:
        tree.pop("expect", None)
        tree.pop("shows", None)
    for at, step in enumerate(steps):
        if step.get("name") in names[:at]:
            step.pop("name", None)
    return tree


def play_scenario(mutant: tuple[Any, int]) -> str | None:
    content, dice = mutant
    scenario = scenario_of(content)
    if not scenario.engine.profiles or weight(scenario) > (MOSTLY if dice % 8 else AFFORDABLE):
        return READ
    listed = scenario.engine.profiles
    profile = full_profile(scenario.engine.name, listed[dice % len(listed)])
    arithmetic: ArithmeticName = "float" if dice % 100 < 2 else "ring"
    detail = dice % 50 == 7
    entry = run(scenario, profile, arithmetic=arithmetic, detail=detail)
    json_output.document([entry])
    if dice % 5 == 0:
        plain_text(one_scenario(scenario, [entry], width=80))
    if dice % 25 == 0 or detail:
        plain_text(story(entry))
    if detail:
        page([entry])
    return None


PIECE: Final = re.compile(r"\{([^{}\[]+)")


def weight(scenario: Scenario) -> int:
    """Wanted how many tokens a run reads and writes."""
    lengths = {name: v if isinstance(v, int) else len(v) for name, v in scenario.spans.items()}
    total = 0
    for step in scenario.step:
        prompt = length_of(step.prompt or (), lengths)
        for message in step.messages:
            named = PIECE.findall(message.content)
            prompt += len(message.content) + sum(lengths.get(name, 0) for name in named)
        forced = 8 if step.reply is None else length_of(step.reply, lengths)
        reply = step.predict if step.predict is not None else forced
        total += prompt + step.completions * (reply if reply >= 0 else 4096)
        lengths[f"{step.name}.reply"] = max(0, reply)
    return total


def length_of(tokens: str | Sequence[Any], lengths: Mapping[str, int]) -> int:
    """Wanted how many tokens a prompt or a forced reply has."""
    if not isinstance(tokens, str):
        return len(tokens)
    return sum(lengths.get(word.partition("[")[0], 8) for word in tokens.split())


def damage_file(seed: str, chance: Chance) -> bytes:
    if chance.random() < 0.2:
        return damaged_bytes(seed.encode(), chance)
    return damaged_text(seed, chance).encode(errors="surrogatepass")


def damage_toml(seed: str, chance: Chance) -> bytes:
    """Another scenario as a file, or a damaged text."""
    if chance.random() < SLIGHTLY:
        return toml(varied_scenario(tomllib.loads(seed), chance)).encode()
    return damage_file(seed, chance)


def play_file(mutant: bytes) -> str | None:
    scenario = loads(mutant, name="mutant.toml")
    if not scenario.engine.profiles or weight(scenario) > AFFORDABLE // 4:
        return READ
    profile = full_profile(scenario.engine.name, scenario.engine.profiles[0])
    run(scenario, profile, arithmetic="ring")
    return None


OPERATIONS: Final = 8
"""Of each recorded sequence, so that a mutant is soon played."""


@cache
def vector_lines() -> tuple[dict[str, Any], ...]:
    """Short recorded sequences of every kind of file."""
    found = []
    for path in sorted((ROOT / "tests" / "vectors").glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            for line, _ in zip(file, range(8), strict=False):
                content = json.loads(line)
                key = kind_of(content, path).operations
                found.append(content | {key: content[key][:OPERATIONS]})
    return tuple(found)


@cache
def vector_keys() -> tuple[str, ...]:
    names: set[str] = set()
    waiting: list[Any] = list(vector_lines())
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            names |= set(each)
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each[:20]
    return tuple(sorted(names))


def damage_vector(seed: Any, chance: Chance) -> Any:
    if chance.random() < SLIGHTLY:
        return varied(seed, chance)
    return damaged_tree(seed, chance, others=vector_lines(), keys=vector_keys())


def play_vector(mutant: Any) -> None:
    """As `real vectors` does: the line goes through JSON, its kind is told from its keys."""
    path = Path("mutant.jsonl")
    played(line_of(json.dumps(mutant), path, 1), path, 1)


SLOT_PROFILES: Final = {
    "llama.cpp@b9538": ("hybrid", "swa"),
    "llama.cpp@b11549": ("hybrid", "dense"),
    "ik_llama.cpp@8337e4cd3": ("hybrid", "dense"),
}


@dataclass(frozen=True, slots=True)
class SlotFile:
    """A saved slot, and the server it came from."""

    profile: str
    model: str
    data: bytes


@cache
def slot_files() -> tuple[SlotFile, ...]:
    found = []
    for profile, models in SLOT_PROFILES.items():
        for model in models:
            store = SlotFiles()
            engine = server_of(profile, model, store)
            engine.submit(Request(prompt=as_tokens(range(300, 340)), predict=3))
            engine.run()
            engine.slot_save(0, "file")
            engine.run()
            found.append(SlotFile(profile, model, store.files["file"]))
    return tuple(found)


def server_of(profile: str, model: str, store: SlotFiles) -> Any:
    """A server that can save and restore its slots."""
    return Engine.create(profile, model=preset(model), arithmetic="ring", store=store)


def damage_slot(seed: SlotFile, chance: Chance) -> SlotFile:
    """Damage that the checksum tells, damage under a right checksum, a file of another server."""
    head = struct.Struct("<4sIII")
    data = seed.data
    if chance.random() < 0.1:
        other = chance.choice(slot_files())
        return SlotFile(other.profile, chance.choice(("hybrid", "dense", "swa", "recurrent")), data)
    if chance.random() < 0.3:
        return SlotFile(seed.profile, seed.model, damaged_bytes(data, chance))
    magic, version, _, length = head.unpack_from(data)
    text, rest = data[head.size : head.size + length], data[head.size + length :]
    if chance.random() < 0.7:
        tree = json.loads(text)
        keys = tuple(tree)
        text = json.dumps(damaged_tree(tree, chance, others=[tree], keys=keys)).encode()
    else:
        rest = damaged_bytes(rest, chance)
    body = text + rest
    packed = head.pack(magic, version, zlib.crc32(body), len(text))
    return SlotFile(seed.profile, seed.model, packed + body)


def play_slot(mutant: SlotFile) -> None:
    """Restore it, and ask for more: refused, or answered from whatever it said."""
    store = SlotFiles()
    store.put("file", mutant.data)
    engine = server_of(mutant.profile, mutant.model, store)
    try:
        engine.slot_restore(0, "file")
        engine.run()
        engine.submit(Request(prompt=as_tokens(range(300, 345)), predict=2))
        engine.run()
    except UpstreamAbort:  # the real server ends on a file that does not fit
        pass


@cache
def workloads() -> tuple[dict[str, Any], ...]:
    """Requests as `cachesim real` draws, plays and writes them."""
    return tuple(
        line for line in vector_lines() if str(line.get("profile", "")).startswith("llama.cpp")
    )


def damage_workload(seed: Any, chance: Chance) -> Any:
    if chance.random() < SLIGHTLY:
        return varied(seed, chance)
    return damaged_tree(seed, chance, others=workloads(), keys=vector_keys())


def play_workload(mutant: Any) -> str | None:
    """Requests as a scenario, the way that a search writes what it found."""
    listed = mutant.get("steps")
    steps = [_own_keys(each) for each in listed] if isinstance(listed, list) else listed
    content = {
        "format": 1,
        "name": "workload",
        "model": mutant.get("model"),
        "engine": {
            "name": "llama.cpp",
            "profiles": [mutant.get("profile")],
            "options": mutant.get("options"),
        },
        "step": steps,
    }
    return play_scenario((content, zlib.crc32(repr(content).encode())))


def _own_keys(step: Any) -> Any:
    """A recorded step without what was observed of it."""
    return {k: v for k, v in step.items() if k in STEP_KEYS} if isinstance(step, dict) else step


STEP_KEYS: Final = frozenset(field.name for field in fields(Step))


@cache
def logs() -> tuple[str, ...]:
    """Short logs of real servers of every release that the tests have one of."""
    found = [(ROOT / "docs" / "examples" / "hybrid.log").read_text()]
    for path in sorted((ROOT / "tests" / "why" / "data").glob("*.json.gz")):
        with gzip.open(path, "rt") as file:
            found += [server["log"] for server in json.load(file).get("servers", ())[:2]]
    return tuple(text[:20_000] for text in found)


def damage_log(seed: str, chance: Chance) -> bytes:
    """Lines lost, doubled and moved; characters and numbers changed."""
    lines = seed.splitlines()
    if chance.random() < SLIGHTLY:
        return varied_log(lines, chance)
    for _ in range(chance.choice((0, 1, 3))):
        at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        lines[at] = chance.choice(("", lines[other], lines[at] * 2, lines[at][: other % 80]))
    return damage_file("\n".join(lines), chance)


NUMBER: Final = re.compile(r"\d+")


def varied_log(kept: Sequence[str], chance: Chance) -> bytes:
    """A log with other numbers, lines that are lost, doubled or exchanged, another end."""
    lines: list[str] = varied(list(kept), chance)
    for _ in range(chance.choice((0, 1, 5))):
        at = chance.randrange(len(lines))
        numbers = list(NUMBER.finditer(lines[at]))
        if numbers:
            chosen = chance.choice(numbers)
            other = str(varied([int(chosen[0])], chance)[0])
            lines[at] = lines[at][: chosen.start()] + other + lines[at][chosen.end() :]
    end = len(lines) if chance.random() < OFTEN else chance.randrange(len(lines)) + 1
    return chance.choice(("\n", "\n", "\r\n")).join(lines[:end]).encode()


def play_log(mutant: bytes) -> str | None:
    """As `why` does."""
    read = read_files([("mutant.log", BytesIO(mutant))])
    requests = sum(len(server.requests) for server in read.servers)
    replays = replays_of(read, UserSettings(profile=None, model=None, window=None, options={}))
    found = why_of(read, replays)
    json.dumps(found)
    if requests % 4 == 0:
        plain_text(*why_report(found, worst=worst_of(found["requests"], 3)))
    return None if requests else READ


@cache
def recordings() -> tuple[dict[str, Any], ...]:
    """Requests as a client or a recorder writes them down, one per line."""
    turns = [
        {"role": "system", "content": "Be kind. Today is 2026-10-01."},
        {"role": "user", "content": [{"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Well."},
        {"role": "user", "content": "And then?"},
    ]
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"a": 1}}}]
    chats = [
        {"request": {"model": "m", "messages": turns[:count], "tools": tools}, "usage": usage}
        for count, usage in ((2, {"prompt_tokens": 70}), (4, {"prompt_tokens": 99}))
    ]
    chats[1]["timings"] = {"cache_n": 50, "prompt_n": 49, "predicted_n": 7}
    plain = {"request": {"prompt": "a b c"}, "timings": {"cache_n": 5, "prompt_n": 7}}
    kept = (ROOT / "docs" / "examples" / "recorded.jsonl").read_text().splitlines()
    hashed = {"lines": [json.loads(line) for line in kept]}
    return ({"lines": [*chats, plain]}, {"lines": [plain, *chats, *chats]}, hashed)


def damage_recording(seed: Any, chance: Chance) -> bytes:
    keys: tuple[str, ...] = ("messages", "content", "role", "tools", "usage", "timings", "prompt")
    keys += (
        "segments",
        "tokens",
        "runs",
        "user_starts",
        "seen",
        "parting",
        "reply",
        "server",
        "hashes",
    )
    if chance.random() < SLIGHTLY:
        tree = varied(seed, chance)
    else:
        tree = damaged_tree(seed, chance, others=recordings(), keys=keys)
    listed = tree.get("lines") if isinstance(tree, dict) else tree
    lines = listed if isinstance(listed, list) else [listed]
    text = "\n".join(json.dumps(line) for line in lines)
    return damage_file(text, chance) if chance.random() < 0.2 else text.encode()


def play_recording(mutant: bytes) -> None:
    """As `why` does with recorded requests; it reads what is none as a log."""
    if not is_dump(mutant[: 1 << 16]):
        raise InputError("no recorded requests")
    requests = read_dump("mutant.jsonl", BytesIO(mutant))
    if len(mutant) % 40 == 0:  # other engines too
        found = report_of_dump(requests, source="mutant.jsonl")
    else:
        live = Live(UserSettings())
        found = {**report_of_live(live, source="mutant.jsonl"), "requests": live.add_all(requests)}
    json.dumps(found)
    plain_text(*dump_report(found, worst=3))


@cache
def answers() -> tuple[str, ...]:
    """Streams of OpenAI's, llama-server's and Anthropic's kind, as the recorder reads them."""
    delta = {"choices": [{"index": 0, "delta": {"content": "Yes", "reasoning_content": "hm"}}]}
    last = {"choices": [], "usage": {"prompt_tokens": 9}, "timings": {"cache_n": 5, "prompt_n": 4}}
    piece = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Yes"}}
    first = {"type": "message_start", "message": {"usage": {"input_tokens": 4}}}
    own = {"content": "Yes", "id_slot": 0, "tokens_evaluated": 9, "error": {"type": "x"}}
    events = (first, delta, piece, own, last)
    return ("".join(f"data: {json.dumps(event)}\n\n" for event in events), json.dumps(last))


def play_answer(mutant: bytes) -> None:
    """As the recorder does with what passes, in pieces of any size."""
    reader = AnswerReader()
    kind = "text/event-stream" if len(mutant) % 3 else "application/json"
    reader.opened(kind, "gzip" if len(mutant) % 5 == 0 else "")
    size = 1 + len(mutant) % 97
    for at in range(0, len(mutant), size):
        reader.feed(mutant[at : at + size])
    json.dumps([numbers_of(reader.close().usage), reader.fields.characters, reader.fields.error])


KINDS: Final[Mapping[str, Kind]] = {
    each.name: each
    for each in (
        Kind(
            name="scenario",
            share=34,
            seeds=seeds_of_scenarios,
            damage=damage_scenario,
            play=play_scenario,
        ),
        Kind(name="file", share=18, seeds=scenario_texts, damage=damage_toml, play=play_file),
        Kind(name="vector", share=15, seeds=vector_lines, damage=damage_vector, play=play_vector),
        Kind(name="slot", share=5, seeds=slot_files, damage=damage_slot, play=play_slot),
        Kind(name="workload", share=5, seeds=workloads, damage=damage_workload, play=play_workload),
        Kind(name="log", share=2, seeds=logs, damage=damage_log, play=play_log),
        Kind(
            name="recording",
            share=2,
            seeds=recordings,
            damage=damage_recording,
            play=play_recording,
        ),
        Kind(name="trace", share=4, seeds=traces, damage=damage_trace, play=play_trace),
        Kind(name="plan", share=1, seeds=plans, damage=damage_plan, play=play_plan),
        Kind(name="sizes", share=2, seeds=configs, damage=damage_config, play=play_config),
        Kind(name="gguf", share=2, seeds=headers, damage=damage_header, play=play_header),
        Kind(name="state", share=1, seeds=states, damage=damage_state, play=play_state),
        Kind(name="report", share=1, seeds=reports, damage=damage_report, play=play_report),
        Kind(name="answer", share=8, seeds=answers, damage=damage_file, play=play_answer),
    )
}
