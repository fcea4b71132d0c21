"""A text index of scenarios, causes, rewrites of clients and pages, for `list scenarios --symptom`.

A scenario is found by its own words and by what the threads that it cites report (`threads.csv`
beside the scenarios), so that a user's words match a reporter's; a rewrite and a page by the words
of those who report or need it (`symptoms.toml`).
"""

import csv
import math
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from cachesim.engines import FAMILIES
from cachesim.engines.facts import causes_of
from cachesim.errors import InputError
from cachesim.scenario.shipped import shipped_files, shipped_folder
from cachesim.why.explain.rewrites import REWRITES

STEM: Final = 5
"""Letters compared as a word's stem: `reprocessed`, `reprocessing`."""

DATA: Final[Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("symptoms.toml").read_text("utf-8")
)
COMMON: Final = frozenset(re.findall(r"\w+", DATA["common"]))
SAME: Final[Mapping[str, str]] = {
    word: meaning for meaning, words in DATA["same"].items() for word in words.split()
}
"""Words of one meaning."""

NAMES: Final = re.compile("|".join(map(re.escape, DATA["names"])), re.IGNORECASE)

FLAG: Final = re.compile(
    r"(?<=--)[a-z]{2,20}(?:-[a-z]{2,20}){1,5}|[a-z]{2,20}(?:_[a-z]{2,20}){1,5}"
)
"""`--cache-ram`, `cache_prompt`: rarer than their words."""

VOTE: Final = 0.5
"""Factor for an entry if all words of a server in a symptom belong to its engine."""

WEIGHTS: Final[Mapping[str, float]] = {
    "symptom": 3,
    "name": 2,
    "threads": 2,
    "about": 1,
    "source": 1,
    "played": 0.5,
}
"""Weight of a word by its part of a scenario."""

SATURATION: Final = 2.5
"""BM25's k1: how much a word that is repeated adds."""

LENGTH: Final = 0.6
"""BM25's b: how much a long text counts less."""

PAIR: Final = 0.3
"""Weight of a bigram: `prefix cache` is more specific than both words alone."""

CLOSE: Final = 0.4
"""Part of the best score that a scenario has which is named too."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a symptom may be found in: a scenario, a cause, what a client does, a page."""

    kind: str
    name: str
    about: str
    upstream: str
    engine: str
    words: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry, and the part of the symptom's words that it has, weighted by their rarity."""

    entry: Entry
    fit: float


def ranked(words: str) -> list[Hit]:
    """The entries that match a symptom, best first; scored by BM25."""
    said = _words(words)
    if not said:
        msg = f"no word to search for in {words!r}; describe what you see, as a user would"
        raise InputError(msg)
    wanted = set(terms(words))
    entries = _index()
    have = {word: sum(word in entry.words for entry in entries) for word in wanted}
    rarity = {
        word: math.log(1 + (len(entries) - n + 0.5) / (n + 0.5)) * (PAIR if " " in word else 1)
        for word, n in have.items()
    }
    mean = sum(sum(entry.words.values()) for entry in entries) / max(len(entries), 1)
    spoken = {family.name: family.vocabulary for family in FAMILIES.values()}
    named = [*spoken.items(), *DATA["servers"].items()]
    engine_of = {word: engine for engine, words in named for word in words.split()}
    votes = Counter(engine_of[word] for word in said if word in engine_of)
    single = {word for word in wanted if " " not in word}
    whole = sum(rarity[word] for word in single)
    found = []
    for entry in entries:
        share = votes[entry.engine] / max(votes.total(), 1)
        damped = SATURATION * (1 - LENGTH + LENGTH * sum(entry.words.values()) / mean)
        near = sum(
            rarity[word] * entry.words[word] / (entry.words[word] + damped)
            for word in wanted & entry.words.keys()
        )
        fit = sum(rarity[word] for word in single & entry.words.keys()) / whole
        found.append((-near * (1 + VOTE * share), entry.name, Hit(entry, fit)))
    best = min((hit[0] for hit in found), default=0.0)
    ordered = sorted(found, key=lambda hit: hit[:2])
    return [hit for score, _, hit in ordered if score < 0 and score <= CLOSE * best]


def terms(text: str) -> Iterator[str]:
    """Stems and synonyms of a text's words, its bigrams, and its flags and fields as they are."""
    yield from (flag.replace("-", "_") for flag in FLAG.findall(text.lower()))
    before = ""
    for word in _words(text):
        stem = word if word[0].isdigit() else word[:STEM]
        yield stem
        if word in SAME:
            yield SAME[word]
        meant = SAME.get(word, stem)
        if before not in {"", meant}:
            yield f"{before} {meant}"
        before = meant


def _words(text: str) -> list[str]:
    """The words and numbers of a text; parts of a class's or a flag's name are words too."""
    whole = re.sub(r"\bre-(?=p)", "re", NAMES.sub(lambda m: DATA["names"][m[0].lower()], text))
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_", " ", whole).lower()
    found = re.findall(r"[a-z]+\d*|\d[\d,.]*\d|\d", parted)
    return [word.replace(",", "") for word in found if word not in COMMON]


def _threads() -> dict[str, str]:
    folder = shipped_folder()
    if folder is None:
        return {}
    with (folder / "threads.csv").open(encoding="utf-8", newline="") as table:
        return {row["thread"]: row["reports"] for row in csv.DictReader(table)}


@cache
def _index() -> list[Entry]:
    threads = _threads()
    contents = [tomllib.loads(file.read_text("utf-8")) for file in shipped_files()]
    return [
        *(_of_scenario(content, threads) for content in contents),
        *_of_causes(),
        *(
            _entry(
                "client",
                f"client {kind}",
                f"the client changes the prompt. {rewrite.advice}",
                {"symptom": [DATA["clients"][kind]]},
            )
            for kind, rewrite in REWRITES.items()
        ),
        *(
            _entry("page", page, "a page of the documentation", {"symptom": [words]})
            for page, words in DATA["pages"].items()
        ),
    ]


def _of_causes() -> Iterator[Entry]:
    for family in FAMILIES.values():
        for cause in causes_of(family.name):
            name = f"{family.name} {cause.id}"
            parts = {
                "symptom": [DATA["causes"].get(name, "")],
                "about": [cause.about, cause.sentence],
                "name": [cause.id],
                "played": [family.name],
            }
            yield _entry("cause", name, cause.about, parts, engine=family.name)


def _of_scenario(content: Mapping[str, Any], threads: Mapping[str, str]) -> Entry:
    source, shows = content.get("source", {}), content.get("shows", {})
    engine, model = content["engine"], content["model"]
    seen = [value for part in ("before", "after") for value in shows.get(part, {}).values()]
    flags = engine.get("options", {}).items()
    cited = [source.get("issue", ""), *source.get("also", [])]
    parts: Mapping[str, Sequence[object]] = {
        "symptom": [shows.get("symptom", "")],
        "name": [content["name"]],
        "about": [content.get("about", "")],
        "threads": [threads.get(link, "") for link in cited],
        "source": [source.get("note", ""), *cited],
        "played": [
            engine["name"],
            content.get("class", ""),
            model.get("preset", ""),
            *flags,
            *seen,
        ],
    }
    about = shows.get("symptom", "") or content.get("class", "")
    return _entry(
        "scenario",
        content["name"],
        about,
        parts,
        engine=engine["name"],
        upstream=source.get("issue", ""),
    )


def _entry(
    kind: str,
    name: str,
    about: str,
    parts: Mapping[str, Sequence[object]],
    *,
    engine: str = "",
    upstream: str = "",
) -> Entry:
    """An entry with its words, weighted by their place."""
    found = defaultdict[str, float](float)
    for part, pieces in parts.items():
        for term in terms(" ".join(map(str, pieces))):
            found[term] += WEIGHTS[part]
    return Entry(kind, name, " ".join(about.split()), upstream, engine, dict(found))
