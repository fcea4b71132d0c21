"""The server that a report is about, by the lines of its log and by its words.

    Processing Prompt [BATCH] (512 / 2397 tokens)    a line that only KoboldCpp prints: its log
    LostRuins/koboldcpp · issue #1895                the repository of the thread
    llama-server -c 8192                             the command that starts it
    KoboldCpp, kobold.cpp                            a name, as people type it: a guess

The first that a report has decides. An engine's lines are printed by servers over it as well, so of
these the one that the words name is meant.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from cachesim.engines import FAMILIES, SPELLINGS
from cachesim.why.read.observed import ServerLog

LINES: Final = (
    ("ollama", r"prefix_cache\.go|mlxrunner|msg=\"mlx runner|cache (?:hit|miss)\"? total=\d"),
    ("ollama-runner", r"\b(?:ollamarunner|llamarunner)\b|msg=\"loading cache slot"),
    ("omlx", r"\bomlx\.\w{1,40}"),
    ("lm-studio", r"Prompt cache restore: cached_tokens=|\bmlx_engine\."),
    ("koboldcpp", r"Processing Prompt ?(?:\[\w{1,9}\])? ?\(|\bCtxLimit:|\[Smart ?Cache "),
    ("rapid-mlx", r"\[cache_(?:fetch|store)\]|\bentry_len=\d"),
    ("sglang", r"#(?:new|cached)-token:"),
    ("vllm", r"\bvllm:prefix_cache_|Prefix cache hit rate:"),
    ("ik_llama.cpp", r"kv cache rm \[p0, end\) \||slot is processing task \|"),
    ("llama-cpp-python", r"\bLlama\.generate: "),
    ("mlx-lm", r"Starting httpd at "),
    ("llama.cpp", r"\bslot +(?:update_slots|launch_slot_|print_timing)"),
)
"""What only one server prints."""

COMMANDS: Final = (
    ("koboldcpp", r"\bkoboldcpp\.py\b"),
    ("vllm-mlx", r"\bvllm-mlx serve\b"),
    ("rapid-mlx", r"\brapid-mlx serve\b"),
    ("sglang", r"\bsglang(?:\.launch_server| serve)\b"),
    ("vllm", r"\bvllm(?: serve|\.entrypoints)\b"),
    ("llama-cpp-python", r"\bllama_cpp\.server\b"),
    ("mlx-lm", r"\bmlx_lm[. ]server\b"),
    ("llama.cpp", r"\bllama-server\b"),
)
"""What starts a server; a report may start another one beside it."""

LOGS: Final = (
    ("Ollama", "ollama"),
    ("LM Studio's llama.cpp", "llama.cpp"),
    ("LM Studio", "lm-studio"),
    ("mlx-openai-server", "mlx-lm"),
)
"""The engine of the logs that `cachesim why` reads, where it has another name there."""

BELOW: Final = ("LM Studio's llama.cpp", "mlx-openai-server")
"""Of these, servers of which only the engine below is simulated."""

HEAD: Final = 400
"""Characters of a report that hold its title and the name of its repository."""

MAY_BE_MEANT_OTHERWISE: Final = frozenset({"transformers", "marconi"})
"""Names that reports of other servers have as well."""


@dataclass(frozen=True, slots=True)
class Named:
    """A server, and what names it; a guess unless its log or its repository does."""

    engine: str
    by: str
    is_guess: bool = False


def server_in(text: str, logs: Sequence[ServerLog]) -> Named:
    """The server that a report is about; the first one that is listed if nothing names any."""
    words, lines, home = _names_in(text), _lines_in(text, logs), _repository(text)
    if logs and logs[0].engine in BELOW:
        by = f"lines of {logs[0].engine}, of which only the engine is simulated"
        return Named(_engine_of(logs[0]), by, is_guess=True)
    if home and (home in lines or any(engine in FAMILIES[home].kin for engine in lines)):
        return Named(home, f"the repository of the thread, {FAMILIES[home].repository}")
    for engine, line in lines.items():
        over = (name for name in words if engine in FAMILIES[name].kin)
        above = next((name for name in over if words[name] > words[engine]), "")
        if above and above not in lines:
            return Named(
                above, f"its name, and the line {line!r} of {engine} below it", is_guess=True
            )
        return Named(engine, f"the line {line!r}")
    if home:
        return Named(home, f"the repository of the thread, {FAMILIES[home].repository}")
    if commands := _matches(COMMANDS, text):
        engine, command = next(iter(commands.items()))
        return Named(engine, f"the command {command!r}")
    if words:
        engine, times = words.most_common(1)[0]
        if engine == "lm-studio" and "mlx" not in text.lower() and "gguf" in text.lower():
            return Named("llama.cpp", "the words LM Studio and GGUF, for it", is_guess=True)
        spelled = f"the name {engine}, {times} times" if times > 1 else f"the name {engine}"
        return Named(engine, spelled, is_guess=True)
    low = Counter(re.findall(r"[a-z]+", text.lower()))
    scores = {
        family.name: sum(low[word] for word in set(family.vocabulary.split()))
        for family in FAMILIES.values()
    }
    best = max(scores, key=scores.__getitem__)
    return Named(best, "words of its field" if scores[best] else "", is_guess=True)


def _lines_in(text: str, logs: Sequence[ServerLog]) -> dict[str, str]:
    """Each server with a line of its own in the text, those with most lines first."""
    found = _matches(LINES, text)
    rows = text.splitlines()
    for log in logs:
        number = log.requests[0].line
        found.setdefault(_engine_of(log), rows[number - 1].strip()[:LINE] if number else "")
    return {engine: line for engine, line in found.items() if engine in FAMILIES}


def _matches(shapes: Sequence[tuple[str, str]], text: str) -> dict[str, str]:
    """The line of the first match of each server, those with most matches first."""
    found: dict[str, str] = {}
    times = Counter[str]()
    for engine, shape in shapes:
        for match in re.finditer(shape, text):
            line = text[text.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0].strip(" `>")
            found.setdefault(engine, line if len(line) <= LINE else match[0].strip())
            times[engine] += 1
    return {engine: found[engine] for engine, _ in times.most_common()}


def _engine_of(log: ServerLog) -> str:
    named = (name for said, name in LOGS if log.engine.startswith(said))
    return next(named, FAMILIES.named(log.engine))


LINE: Final = 70
"""Characters of a quoted line at most."""


def _repository(text: str) -> str:
    """The engine whose repository the head of a thread names; empty if it names none."""
    head = text[:HEAD].lower()
    for family in FAMILIES.values():
        if family.repository and re.search(
            rf"(?<![\w.-]){re.escape(family.repository.lower())}(?![\w-])", head
        ):
            return _of_ollama(text) if family.name.startswith("ollama") else family.name
    return ""


def _of_ollama(text: str) -> str:
    return "ollama" if re.search(r"\bmlx", text, re.IGNORECASE) else "ollama-runner"


@cache
def _spelled() -> tuple[re.Pattern[str], dict[str, str]]:
    """A pattern of all names as people type them, the longest first, and whose they are."""
    whose = {}
    for name in FAMILIES:
        for spelling in (name, *SPELLINGS.get(name, ())):
            whose[re.sub(r"[\W_]+", "", spelling).lower()] = name
    words = sorted({name for names in SPELLINGS.values() for name in names} | {*FAMILIES}, key=len)
    shapes = (r"[\s._-]?".join(map(re.escape, re.split(r"[\s._-]+", word))) for word in words[::-1])
    return re.compile(rf"(?<![a-z0-9])(?:{'|'.join(shapes)})(?![a-z0-9])", re.IGNORECASE), whose


def _names_in(text: str) -> Counter[str]:
    """How often each server is named; a name in the title counts for five."""
    shape, whose = _spelled()
    found = Counter[str]()
    for match in shape.finditer(text):
        name = whose[re.sub(r"[\W_]+", "", match[0]).lower()]
        if name not in MAY_BE_MEANT_OTHERWISE:
            found[name] += 5 if match.start() < HEAD else 1
    if found["ollama"]:
        found[_of_ollama(text)] += found.pop("ollama")
    return found
