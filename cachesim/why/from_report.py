"""A first draft of a scenario from a report: a saved thread, or text pasted from one.

Where the text has enough of a llama-server's log, the log reader finds the worst miss and the
requests that it needs. Otherwise names, flags and numbers are looked for, and two requests are
written that share as much as the numbers say. What a report does not say is named, so that its
author can be asked; nothing is made up without a word about it.
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
from cachesim.scenario import full_profile, loads
from cachesim.scenario.files import to_toml
from cachesim.typed import mapping
from cachesim.why.explain.whole import UserSettings, read_files, replays_of
from cachesim.why.extract import worst_scenario
from cachesim.why.infer.settings import kind_of

MOST: Final = 4 << 20
"""Bytes of a report."""

LONG: Final = 262_144
"""Tokens of a scenario's longest prompt."""

UNKNOWN_PROMPT: Final = 1000
UNKNOWN_REST: Final = 40
"""Tokens written where a report gives no number."""

# A search tries a pattern at each character. So no part of one may go on without a bound: a line of
# 70,000 characters would be read 70,000 times (tests/why/test_patterns.py).

DIGITS: Final = r"\d{1,3}(?:,\d{3}){1,4}|\d{1,15}"
NUMBER: Final = rf"({DIGITS})"

SHARED: Final = rf"(?P<shared>{DIGITS})"
SHAPES: Final = (
    rf"shared={SHARED} entry_len=(?P<held>\d{{1,15}}) requested_len=(?P<whole>\d{{1,15}})",
    rf"n_past = {SHARED}, slot\.prompt\.tokens\.size\(\) = (?P<held>\d{{1,15}})",
    rf"total=(?P<whole>\d{{1,15}}) matched={SHARED} cached=(?P<cached>[1-9]\d{{0,14}}) left=",
)
"""Common prefix of two prompts, beside other counts, as servers log it."""

REUSED: Final = (
    rf"\b{NUMBER}\s{{0,8}}(?:/|of|out of)\s{{0,8}}{NUMBER}"
    r"[^.\n]{0,24}?(?:cached|tokens|hit|reused)"
)
"""Reused tokens of a prompt."""

WHOLE: Final = (
    rf"task\.n_tokens = {NUMBER}",
    rf"prompt_tokens[\"'`:= ]{{1,12}}{NUMBER}",
    rf"\b{NUMBER}[- ]tokens?[- ](?:prompt|request|conversation)",
    rf"prompt (?:of|with) {NUMBER} tokens",
)
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

CACHED: Final = rf"(?<![a-z])cached[_ ]?tokens?(?:[\"'`:= ]| is | was ){{1,12}}{NUMBER}"

RESTORED: Final = r"cached_tokens=(\d{1,15}) uncached_tokens=(\d{1,15})"
"""Reused tokens and the others but the last, as LM Studio logs them."""

FULL: Final = r"full prompt re-?processing|\bMISS\b"
"""A prompt of which nothing is reused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of tokens in a report; None where it has none."""

    whole: int | None = None  # of the later prompt
    shared: int | None = None  # of it, with what was there
    held: int | None = None  # of the conversation that was there
    cached: int | None = None  # reused, as reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A scenario's file, and what the report does not say."""

    text: str
    missing: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server of a report, as far as it names it."""

    engine: str
    release: str
    preset: str
    options: Mapping[str, Any] = field(default_factory=dict)


def draft_of(name: str, data: bytes, *, source: str) -> Draft:
    """A draft from the bytes of a report."""
    if len(data) > MOST:
        msg = f"{source}: has {len(data)} bytes; a report has at most {MOST}: save the thread alone"
        raise InputError(msg)
    text = data.decode("utf-8", "replace")
    if b"\0" in data or not re.search(r"\w", text):
        msg = f"{source}: has no text; save the thread as text or Markdown, with its log lines"
        raise InputError(msg)
    return _from_log(name, data, text) or _from_words(name, text)


def _from_log(name: str, data: bytes, text: str) -> Draft | None:
    try:
        replays = replays_of(read_files([(name, BytesIO(data))]), UserSettings())
        found = replace(worst_scenario(replays), name=name)
    except CachesimError:
        return None
    settings = replays[0].settings
    missing = []
    if settings.release.how != "printed":
        missing.append(f"the build (`llama-server --version`); {settings.release.value} is assumed")
    if settings.preset.how == "assumed":
        missing.append(f"the model; the preset {settings.preset.value} is assumed")
    head = _head(missing, issue_in(text))
    return Draft(text=f"{head}\n{to_toml(found)}", missing=tuple(missing), note="from its log")


def _from_words(name: str, text: str) -> Draft:
    missing: list[str] = []
    family = _family(text, missing)
    server = Server(
        engine=family.name, release=_release(family, text, missing), preset=_preset(text, missing)
    )
    counts = counts_in(text)
    if counts.whole is None:
        missing.append(f"the lengths of the prompts in tokens; {UNKNOWN_PROMPT} are assumed")
    if counts.shared is None:
        missing.append("how many tokens two prompts share; the same prompt is sent twice here")
    if counts.cached is None:
        missing.append("how many tokens were reused (`cached_tokens`, `cache_n`)")
    options = dict(_flags(family, server.release, text))
    refused = set[str]()
    while True:
        server = replace(server, options=options)
        try:
            # The later request of a draft, in numbers of tokens alone.
            draft = _written(name, text, server, counts, ())
            profile = full_profile(server.engine, server.release)
            last = run(loads(draft.encode(), name=name), profile, arithmetic="counts").steps[-1]
        except CachesimError as error:
            if not options:
                raise
            dropped = next((option for option in options if option in str(error)), [*options][-1])
            value = options.pop(dropped)
            refused.add(dropped)
            missing.append(f"whether {dropped} is {value!r}; left out, as refused: {_first(error)}")
            continue
        limit = next((option.name for option in family.declared if option.name in LIMITS), "")
        if last.error is None or not limit or limit in options or limit in refused:
            break
        options[limit] = 2 * max(counts.whole or 0, counts.held or 0, UNKNOWN_PROMPT)
        missing.append(f"{limit}, the maximum tokens; {options[limit]} is assumed")
    said = "" if counts.cached is None else f"; the report says {counts.cached}"
    note = f"the second request reuses {last.cached or 0} tokens in {server.release}{said}"
    written = _written(name, text, server, counts, missing)
    return Draft(text=written, missing=tuple(missing), note=note)


def _first(error: CachesimError) -> str:
    return str(error).splitlines()[0].rsplit(": ", 1)[-1]


def issue_in(text: str) -> str:
    """The thread that a report is, as owner/repository#1; empty if it does not say."""
    found = next(filter(None, (re.search(shape, text) for shape in ISSUES)), None)
    return f"{found[1]}#{found[2]}" if found else ""


def _family(text: str, missing: list[str]) -> Family[Any, Any]:
    """The server that a report names most often."""
    low = text.lower()
    words = Counter(re.findall(r"[a-z]+", low))

    def score(family: Family[Any, Any]) -> float:
        own = set(family.vocabulary.split())
        program = family.program.split("/")[-1].split(" ")[0].lower()
        names = {family.repository.lower(), family.name, program, family.name.replace("-", "_")}
        named = sum(
            len(re.findall(rf"(?<![\w.]){re.escape(name)}\b", low))
            for name in names
            if name and name in low
        )
        return 10 * named + sum(words[word] for word in own)

    best = max(FAMILIES.values(), key=score)
    if not score(best):
        missing.append(f"the server; {best.name} is assumed")
    return best


def _release(family: Family[Any, Any], text: str, missing: list[str]) -> str:
    """The newest known release that is not newer than the one that a report names."""
    known = {name: _version(name) for name in family.names()}
    oldest, newest = family.names()[0], family.names()[-1]
    shape = BUILD if newest[:1] == "b" else VERSION
    said = (_version("".join(each)) for each in re.findall(shape, text))
    near = [each for each in said if len(each) == 1 or each[0] == known[newest][0]]
    wanted = next((each for each in near if known[oldest] <= each), None)
    if wanted is None:
        missing.append(f"the release; {newest} is assumed")
        return newest
    found = max((each for each in known.values() if each <= wanted), default=known[oldest])
    release = next(name for name, each in known.items() if each == found)
    if found != wanted:
        spelled = ".".join(map(str, wanted))
        missing.append(
            f"what differs between {spelled} and {release}, the nearest that is simulated"
        )
    return release


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d{1,6}", text)))


def _preset(text: str, missing: list[str]) -> str:
    """The preset with the memory of the model that a report names."""
    words = Counter(re.findall(NAME, text))
    named = Counter[str | None]()
    for word, times in words.items():
        if any(map(str.isdigit, word)):
            named[kind_of(word)] += times
    kinds = {kind: times for kind, times in named.items() if kind not in {None, "dense"}}
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
        missing.append("the model, or its kinds of layers; full attention is assumed")
        return "dense"
    return "hybrid-mtp" if preset == "hybrid-delta" and re.search(r"\bmtp\b", low) else preset


def counts_in(text: str) -> Counts:
    """The numbers of tokens that a report gives; logged ones before those in sentences."""
    for shape in SHAPES:
        if found := re.search(shape, text):
            groups = found.groupdict()
            whole = groups.get("whole") or _group(WHOLE[0], text)
            cached = groups.get("cached") or ("0" if re.search(FULL, text) else None)
            return Counts(
                shared=_known(groups["shared"]),
                held=_known(groups.get("held")),
                whole=_known(whole),
                cached=_known(cached),
            )
    if found := re.search(REUSED, text, re.IGNORECASE):
        return Counts(cached=_number(found[1]), whole=_number(found[2]))
    if restored := [*re.finditer(RESTORED, text)]:
        cached, rest = map(_number, restored[-1].groups())
        return Counts(cached=cached, whole=cached + rest + 1)
    whole = next((each for shape in WHOLE if (each := _group(shape, text)) is not None), None)
    named = [match[1] for match in re.finditer(CACHED, text, re.IGNORECASE)]
    full = ["0"] if re.search(FULL, text) else []
    return Counts(whole=_known(whole), cached=_known(next(iter([*named[::-1], *full]), None)))


def _group(shape: str, text: str) -> str | None:
    found = re.search(shape, text, re.IGNORECASE)
    return found[1] if found else None


def _known(text: str | None) -> int | None:
    return None if text is None else _number(text)


def _number(text: str) -> int:
    return min(int(text.replace(",", "")), LONG)


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


def _written(name: str, text: str, server: Server, counts: Counts, missing: Sequence[str]) -> str:
    """The file: two requests, the later one with as much in common as the report says."""
    whole = counts.whole or (counts.shared or UNKNOWN_PROMPT) + (
        UNKNOWN_REST if counts.shared else 0
    )
    shared = min(whole if counts.shared is None else counts.shared, whole)
    spans = {"S": shared, "a": max((counts.held or shared) - shared, 0), "b": whole - shared}
    rows = [f"{key} = {length}" for key, length in spans.items() if length]
    first = " ".join(key for key in ("S", "a") if spans[key])
    second = " ".join(key for key in ("S", "b") if spans[key])
    flags = [f"{key} = {json.dumps(value)}" for key, value in server.options.items()]
    options = "\n".join(flags) or "# no flag of the report has an effect on the cache"
    lengths = "\n".join(rows)
    said = "" if counts.cached is None else f"# reported: cached = {counts.cached}, of = {whole}\n"
    return f"""{_head(missing, issue_in(text))}
format = 1
name   = "{name}"
about  = "A draft from a report: two requests, as its numbers say."
class  = "lost-reuse"

[model]
preset = "{server.preset}"

[engine]
name     = "{server.engine}"
profiles = ["{server.release}"]

[engine.options]
{options}

[spans]
{lengths}

[[step]]
name    = "first"
prompt  = "{first}"
predict = 1

{said}[[step]]
name    = "second"
prompt  = "{second}"
predict = 1
"""


def _head(missing: Sequence[str], issue: str) -> str:
    lines = [f"# report: {issue}"] if issue else []
    return "\n".join([*lines, *(f"# not in the report: {each}" for each in missing)])
