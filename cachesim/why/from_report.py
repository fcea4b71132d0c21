"""A first draft of a scenario from a report: a saved thread, or text pasted from one.

Where the text has enough of a llama-server's log, the log reader finds the worst miss and the
requests that it needs. Otherwise names, flags and numbers are looked for, and requests are written
that share as much as the numbers say. What a report does not say is named, so that its author can
be asked, and marked as a guess where it is written.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any, Final

from cachesim.engines import FAMILIES
from cachesim.engines.family import Family
from cachesim.errors import CachesimError, InputError, OptionError
from cachesim.play import run
from cachesim.play.result import Step
from cachesim.scenario import full_profile, loads
from cachesim.scenario.files import to_toml
from cachesim.typed import mapping
from cachesim.why.explain.whole import UserSettings, read_files, replays_of
from cachesim.why.extract import worst_scenario
from cachesim.why.infer.settings import kind_of
from cachesim.why.named import Named, server_in
from cachesim.why.read.observed import ServerLog
from cachesim.why.reported import (
    LONG,
    MOST_REQUESTS,
    UNKNOWN_PROMPT,
    Asked,
    Counts,
    counts_in,
    logged_counts,
    observed_counts,
    prompts_of,
    spans_of,
)

MOST: Final = 4 << 20
"""Bytes of a report."""

NUMBERS: Final = r"(\d{1,6}(?:\.\d{1,6}){1,2})(?![.\w])"
BUILD: Final = r"\bb(\d{4,5})\b|\bbuild:? (\d{4,5})\b|\bversion: (\d{4,5})\b"
VERSION: Final = r"\bv?(\d{1,6}\.\d{1,6}\.\d{1,6})"
"""Form of a release: a build number, or three numbers."""

LINE_END: Final = r"`|(?<!\\)\n"
COMMAND: Final = r"\b(?:server|llama-cli|serve|--model|-m)\b"
"""What makes a line, with those that continue it, the command of a server."""

SPECULATION: Final = r"--speculative-config\s{1,8}'?(\{[^}]{0,500}\})"
NAME: Final = r"[A-Za-z][\w.-]{0,100}"
ISSUES: Final = (
    r"github\.com/([\w.-]{1,39}/[\w.-]{1,100})/(?:issues|pull)/(\d{1,9})\b(?!#)",
    r"\b([\w.-]{1,39}/[\w.-]{1,100})(?: · (?:issue|pull request) )?#(\d{1,9})\b",
)

LIMITS: Final = ("ctx_size", "max_model_len", "n_ctx")
"""Options with the maximum tokens of a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A scenario's file, and what the report does not say."""

    text: str
    missing: tuple[str, ...]
    note: str = ""
    server: str = ""  # and what names it


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server of a report, as far as it names it."""

    named: Named
    release: str
    preset: str
    options: Mapping[str, Any] = field(default_factory=dict)
    guesses: Mapping[str, str] = field(default_factory=dict)
    """What the report does not say: release, preset, an option."""

    @property
    def engine(self) -> str:
        """Its engine."""
        return self.named.engine


def draft_of(name: str, data: bytes, *, source: str) -> Draft:
    """A draft from the bytes of a report."""
    if len(data) > MOST:
        msg = f"{source}: has {len(data)} bytes; a report has at most {MOST}: save the thread alone"
        raise InputError(msg)
    text = data.decode("utf-8", "replace")
    if b"\0" in data or not re.search(r"\w", text):
        msg = f"{source}: has no text; save the thread as text or Markdown, with its log lines"
        raise InputError(msg)
    return _from_log(name, data, text) or _from_words(name, data, text)


def _from_log(name: str, data: bytes, text: str) -> Draft | None:
    try:
        replays = replays_of(read_files([(name, BytesIO(data))]), UserSettings())
        found = replace(worst_scenario(replays), name=name)
    except CachesimError:
        return None
    settings = replays[0].settings
    missing = []
    if settings.release.how != "printed":
        missing.append(f"the build (`llama-server --version`); {settings.release.value} is a guess")
    if settings.preset.how == "assumed":
        missing.append(f"the model; the preset {settings.preset.value} is a guess")
    head = _head(missing, issue_in(text))
    return Draft(text=f"{head}\n{to_toml(found)}", missing=tuple(missing), note="from its log")


def _logs(name: str, data: bytes) -> list[ServerLog]:
    try:
        return read_files([(name, BytesIO(data))]).servers
    except CachesimError:
        return []


def _from_words(name: str, data: bytes, text: str) -> Draft:
    missing: list[str] = []
    logs = _logs(name, data)
    named = server_in(text, logs)
    if named.is_guess:
        missing.append(f"a log line or a thread of the server; {named.engine} is a guess")
    guesses: dict[str, str] = {}
    server = Server(
        named=named,
        release=_release(FAMILIES[named.engine], text, guesses),
        preset=_preset_of_checkpoints(logs) or _preset(text, guesses),
        guesses=guesses,
    )
    missing += guesses.values()
    counts = _counts(named, logs, text, missing)
    asked = prompts_of(counts)
    options = dict(_flags(FAMILIES[named.engine], server.release, text))
    server, steps = _started(name, text, replace(server, options=options), asked, missing)
    lines = [
        f"{ordinal} reuses {step.cached or 0} tokens in {server.release}{_reported(request)}"
        for ordinal, step, request in zip(_ordinals(asked), steps, asked, strict=True)
        if request.counts is not None
    ]
    written = _written(name, text, server, asked, missing)
    said = f"{named.engine}, by {named.by}" if named.by else ""
    return Draft(text=written, missing=tuple(missing), note="\n".join(lines), server=said)


def _counts(
    named: Named, logs: Sequence[ServerLog], text: str, missing: list[str]
) -> Sequence[Counts]:
    """The counts of each request of the report, and what they lack."""
    found = max(map(observed_counts, logs), key=len, default=[])
    printer, others = logged_counts(text)
    if len(others) > len(found) and printer in {"", named.engine}:
        found = others
    counts = found or [counts_in(text)]
    if len(counts) > MOST_REQUESTS:
        missing.append(f"which of {len(counts)} requests matter; the last {MOST_REQUESTS} are here")
    if any(LONG in {one.whole, one.held} for one in counts):
        missing.append(f"whether it needs prompts so long; they are cut to {LONG:,} tokens here")
    of = "" if len(counts) == 1 else "of some requests, "
    if any(one.whole is None for one in counts):
        missing.append(f"{of}the lengths of the prompts in tokens; those here are guesses")
    if any(one.shared is None for one in counts):
        same = (
            "the same prompt is sent twice here" if len(counts) == 1 else "they extend each other"
        )
        missing.append(f"{of}how many tokens two prompts share; {same}, a guess")
    if any(one.cached is None for one in counts):
        missing.append(f"{of}how many tokens were reused (`cached_tokens`, `cache_n`)")
    return counts


def _started(
    name: str, text: str, server: Server, asked: Sequence[Asked], missing: list[str]
) -> tuple[Server, Sequence[Step]]:
    """The server with the flags of the report that it takes, and the steps, in counts alone."""
    family, options, guesses = FAMILIES[server.engine], dict(server.options), dict(server.guesses)
    # Nothing reads what a state holds, and a long prompt would be walked at each stored one.
    quiet = {family.records_provenance: False} if family.records_provenance else {}
    refused = set[str]()
    while True:
        server = replace(server, options=options, guesses=guesses)
        try:
            draft = _written(name, text, server, asked, ())
            profile = full_profile(server.engine, server.release)
            scenario = loads(draft.encode(), name=name)
            flags = {**scenario.engine.options, **quiet}
            scenario = replace(scenario, engine=replace(scenario.engine, options=flags))
            steps = run(scenario, profile, arithmetic="counts", verify=False).steps
        except CachesimError as error:
            if not options:
                raise
            dropped = next((option for option in options if option in str(error)), [*options][-1])
            value = options.pop(dropped)
            refused.add(dropped)
            missing.append(f"whether {dropped} is {value!r}; left out, as refused: {_first(error)}")
            continue
        limit = next((option.name for option in family.declared if option.name in LIMITS), "")
        is_whole = all(step.error is None for step in steps)
        if is_whole or not limit or limit in options or limit in refused:
            return server, steps
        options[limit] = 2 * max(UNKNOWN_PROMPT, *(request.length for request in asked))
        guesses[limit] = f"{limit}, the maximum tokens; {options[limit]} is a guess"
        missing.append(guesses[limit])


def _reported(request: Asked) -> str:
    cached = None if request.counts is None else request.counts.cached
    return "" if cached is None else f"; the report says {cached}"


def _ordinals(asked: Sequence[Asked]) -> list[str]:
    """The names of the requests in sentences."""
    names = _names(asked)
    return [f"the {name} request" if len(asked) == 2 else name for name in names]


def _names(asked: Sequence[Asked]) -> list[str]:
    """The names of the steps: a request that the report does not show came before."""
    if len(asked) == 2:
        return ["first", "second"]
    shown, before, names = 0, 0, []
    for request in asked:
        shown, before = shown + (request.counts is not None), before + (request.counts is None)
        names.append(f"before-{before}" if request.counts is None else f"request-{shown}")
    return names


def _first(error: CachesimError) -> str:
    return str(error).splitlines()[0].rsplit(": ", 1)[-1]


def issue_in(text: str) -> str:
    """The thread that a report is, as owner/repository#1; empty if it does not say."""
    found = next(filter(None, (re.search(shape, text) for shape in ISSUES)), None)
    return f"{found[1]}#{found[2]}" if found else ""


def _release(family: Family[Any, Any], text: str, guesses: dict[str, str]) -> str:
    """The newest known release that is not newer than the one that a report names."""
    names = family.names()
    newest = names[-1]
    builds = newest[:1] == "b"
    if not builds and re.fullmatch(r"\d+(?:\.\d+){1,2}", newest) is None:
        guesses["release"] = f"the state of its source; {newest} is a guess"
        return newest
    known = {name: _version(name) for name in names if _version(name)}
    oldest = min(known.values())
    said = _versions(family, text, builds=builds)
    near = [version for version in said if len(version) == 1 or version[0] == known[newest][0]]
    wanted = next((version for version in near if oldest <= version), None)
    if wanted is None:
        older = f", and {_spelled(near[0])} is older than all that are simulated" if near else ""
        release = newest if not near else names[0]
        guesses["release"] = f"the release{older}; {release} is a guess"
        return release
    found = max(version for version in known.values() if version <= wanted)
    release = next(name for name, version in known.items() if version == found)
    if found != wanted:
        guesses["release"] = (
            f"what differs between {_spelled(wanted)} and {release}, the nearest that is simulated"
        )
    return release


def _versions(family: Family[Any, Any], text: str, *, builds: bool) -> list[tuple[int, ...]]:
    """Releases that a report names: those behind the server's name, else any of that form."""
    if builds:
        return [_version("".join(build)) for build in re.findall(BUILD, text)]
    name = r"[\s._-]?".join(map(re.escape, re.split(r"[\s._-]+", family.name)))
    behind = re.findall(
        rf"{name}[^\w\n]{{0,6}}(?:version|release|v)?[^\w\n]{{0,4}}{NUMBERS}", text, re.IGNORECASE
    )
    return [_version(number) for number in behind or re.findall(VERSION, text)]


def _spelled(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d{1,6}", text)))


def _preset_of_checkpoints(logs: Sequence[ServerLog]) -> str:
    """The preset of a model whose checkpoints a log has: a state is of one position."""
    requests = [request for log in logs for request in log.requests]
    spans = [span[:2] for request in requests for span in (*request.checked, *request.created)]
    if not spans:
        return ""
    return "hybrid" if all(first == last for first, last in spans) else "swa"


def _preset(text: str, guesses: dict[str, str]) -> str:
    """The preset with the memory of the model that a report names."""
    words = Counter(re.findall(NAME, text))
    named = Counter[str | None]()
    for word, times in words.items():
        if any(map(str.isdigit, word)):
            named[kind_of(word)] += times
    kinds = {kind: times for kind, times in named.items() if kind not in {None, "dense"}}
    if len(kinds) > 1:  # Mamba beside the name of a model with attention is its kind of state
        kinds.pop("recurrent", None)
    low = text.lower()
    if kinds:
        preset = max(kinds, key=kinds.__getitem__) or ""
    elif re.search(r"\b(hybrid|mamba|gdn|deltanet|recurrent|ssm)", low):
        preset = "hybrid"
    elif re.search(r"sliding.window|\bswa\b", low):
        preset = "swa"
    elif "dense" in named:
        return "dense"
    else:
        guesses["preset"] = "the model, or its kinds of layers; full attention is a guess"
        return "dense"
    return "hybrid-mtp" if preset == "hybrid-delta" and re.search(r"\bmtp\b", low) else preset


def _flags(family: Family[Any, Any], release: str, text: str) -> Iterator[tuple[str, Any]]:
    """Flags of the server that a report gives and that have an effect on its cache."""
    speculation = re.search(SPECULATION, text)
    try:
        drafter = json.loads(speculation[1]) if speculation else {}
    except (ValueError, RecursionError):
        drafter = {}
    drafter = mapping(drafter)
    commands = "\n".join(part for part in re.split(LINE_END, text) if re.search(COMMAND, part))
    for option in family.declared:
        if not option.flag or release not in family.having(option):
            continue
        key = option.flag.rsplit(".", 1)[-1].replace("-", "_")
        value = drafter.get(key) if option.flag.startswith("--speculative-config.") else None
        names = option.flag.split(", ")
        found = next(filter(None, (_argument(name, commands, text) for name in names)), None)
        if value is None and found:
            value = True if option.kind == "yes or no" else _plain(found[1])
        if value is None and option.kind == "yes or no":
            value = False if f"--no-{names[-1].removeprefix('--')}" in text else None
        try:
            if value is not None and value != family.default(option, release):
                yield option.name, option.read(value)
        except OptionError:
            continue


def _argument(flag: str, commands: str, text: str) -> re.Match[str] | None:
    """A flag and what follows it; a short one is read in command lines alone."""
    if flag not in text:
        return None
    shape = rf"(?<![\w-]){re.escape(flag)}(?![\w.-])(?:[= ]+([^\s`'\"\\]+))?"
    return re.search(shape, text if flag.startswith("--") else commands)


def _plain(text: str | None) -> object:
    if text is None:
        return None
    return int(text) if re.fullmatch(r"-?\d{1,12}", text) else text


def _written(
    name: str, text: str, server: Server, asked: Sequence[Asked], missing: Sequence[str]
) -> str:
    """The file: requests that have as much in common as the report says."""
    spans, prompts = spans_of(asked)
    rows = "\n".join(f"{key} = {length}" for key, length in spans.items())
    flags = [
        f"{key} = {json.dumps(value)}{_mark(key in server.guesses)}"
        for key, value in server.options.items()
    ]
    options = "\n".join(flags) or "# no flag of the report has an effect on the cache"
    by = f"  # by {server.named.by}" if server.named.by and not server.named.is_guess else ""
    steps = "\n".join(
        f"""{_comment(request)}[[step]]
name    = "{step}"
prompt  = "{" ".join(prompt)}"
predict = 1
"""
        for step, request, prompt in zip(_names(asked), asked, prompts, strict=True)
    )
    return f"""{_head(missing, issue_in(text))}
format = 1
name   = "{name}"
about  = "A draft from a report: requests as its numbers say."
class  = "lost-reuse"

[model]
preset = "{server.preset}"{_mark("preset" in server.guesses)}

[engine]
name     = "{server.engine}"{by or _mark(server.named.is_guess)}
profiles = ["{server.release}"]{_mark("release" in server.guesses)}

[engine.options]
{options}

[spans]
{rows}

{steps}"""


def _mark(is_guess: bool) -> str:  # noqa: FBT001 - a question about a value, not a switch
    return "  # a guess" if is_guess else ""


def _comment(request: Asked) -> str:
    """What the report says of a request, and what of the step is a guess."""
    lines = [f"# a guess: {' and '.join(request.guesses)}"] if request.guesses else []
    if request.counts is None:
        lines.insert(0, "# before the requests of the report: what they share with it")
    elif request.counts.cached is not None:
        lines.append(f"# reported: cached = {request.counts.cached}, of = {request.length}")
    return "".join(f"{line}\n" for line in lines)


def _head(missing: Sequence[str], issue: str) -> str:
    lines = [f"# report: {issue}"] if issue else []
    return "\n".join([*lines, *(f"# not in the report: {lack}" for lack in missing)])
