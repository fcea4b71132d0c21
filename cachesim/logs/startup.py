"""What a server says of itself when it starts: its build, its flags, its model."""

import re
from typing import Final

from cachesim.logs.lines import Line

RESTART: Final = frozenset({"build", "loading"})
"""Facts that come once in a server's life."""

FACTS: Final = tuple(
    (name, words, re.compile(shape))
    for name, words, shape in (
        ("build", "build", r"(?:build_info: b|build: |build = |\bbuild=)(?P<value>\d+)"),
        ("loading", "loading model '", r"loading model '(?P<value>[^']*)'"),
        ("command", "llama-server", r"(?P<value>\S*llama-server(?:\.exe)?\s+-.*)"),
        ("slots", "n_slots", r"n_slots ?= ?(?P<value>\d+)"),
        ("commit", "build info |", r"commit=\"?(?P<value>[0-9a-f]{7,40})"),
        ("n_ctx_slot", "n_ctx_slot", r"initializing.*n_ctx_slot = (?P<value>\d+)"),
        ("kv_unified", "kv_unified", r"kv_unified\s+= '?(?P<value>true|false)"),
        ("n_ctx", "n_ctx ", r"llama_context: n_ctx\s+= (?P<value>\d+)"),
        ("n_batch", "n_batch", r"llama_context: n_batch\s+= (?P<value>\d+)"),
        ("n_ubatch", "n_ubatch", r"llama_context: n_ubatch\s+= (?P<value>\d+)"),
        ("architecture", "general.architecture", r"str\s+= (?P<value>\S+)"),
        ("architecture", "print_info: arch ", r"arch\s+= (?P<value>\S+)"),
        ("n_swa", "print_info: n_swa ", r"n_swa\s+= (?P<value>\d+)"),
        ("ssm", "print_info: ssm_d_state", r"ssm_d_state\s+= (?P<value>\d+)"),
        ("cache-off", "prompt cache is disabled", r"(?P<value>disabled)"),
        ("cache-mib", "prompt cache is enabled", r"size limit: (?P<value>\d+|no limit)"),
        ("checkpoints", "context checkpoints enabled", r"max = (?P<value>\d+)"),
        ("checkpoints-off", "context checkpoints disabled", r"(?P<value>disabled)"),
        ("min-step", "context checkpoints enabled", r"min spacing = (?P<value>-?\d+)"),
        ("idle-saved", "idle slots will be saved", r"(?P<value>saved)"),
        ("idle-needs-unified", "requires --kv-unified", r"(?P<value>--kv-unified)"),
        ("idle-needs-cache", "--cache-idle-slots requires --cache-ram", r"(?P<value>--cache-ram)"),
        ("draft-mtp", "draft-mtp", r"(?P<value>adding)"),
        ("draft-mtp", "creating MTP draft context", r"(?P<value>creating)"),
        ("draft-model", "loading draft model", r"(?P<value>draft)"),
        ("swa-full", "full-size SWA cache", r"(?P<value>full)"),
        (
            "kv-size",
            "llama_kv_cache: size =",
            r"size =\s+(?P<value>[\d.]+ MiB \( *\d+ cells, *\d+)",
        ),
        ("rs-size", "llama_memory_recurrent: size =", r"size =\s+(?P<value>[\d.]+ MiB \( *\d+)"),
        ("verbosity", "verbosity = ", r"verbosity = (?P<value>-?\d+)"),
        ("listening", "listening on http", r"(?P<value>http\S+)"),
    )
)
"""Name, words of the line, shape of the value; several lines may tell the same fact."""

TEXTS: Final = frozenset({"loading", "command"})
LONGEST, WIDEST = 4000, 40
"""Characters of a fact: a path or a command line; a number or a word."""

BRIEF: Final = ("llama", "n_", "build", "cache", "print_info", "model", "general", "kv", "draft",
                "idle", "SWA", "verbosity", "listening", "checkpoints enabled")  # fmt: skip
"""One of these stands in every start-up line: a quick look spares the others."""


def facts_of(line: Line) -> list[tuple[str, str]]:
    """Every fact that a line tells."""
    text = line.text
    if line.component == "slot" or not any(word in text for word in BRIEF):
        return []
    found = []
    for name, words, shape in FACTS:
        if words in text:
            match = shape.search(text)
            if match is not None and len(match["value"]) <= (LONGEST if name in TEXTS else WIDEST):
                found.append((name, match["value"]))
    return found


FOREIGN: Final = (
    ("vLLM", "Prefix cache hit rate"),
    ("SGLang", "#cached-token:"),
)
"""Servers that are known by their lines, and cannot be replayed from them."""


def foreign_in(text: str) -> set[str]:
    """Which other server a line is of."""
    return {name for name, words in FOREIGN if words in text}
