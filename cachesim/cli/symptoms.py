"""A text index of the shipped scenarios, for `cachesim list scenarios --symptom`.

A scenario is found by its own words and by what the threads that it cites report (`threads.csv`
beside the scenarios), so that a user's words match a reporter's.
"""

import csv
import math
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from cachesim.engines import FAMILIES
from cachesim.errors import InputError
from cachesim.scenario.shipped import shipped_files, shipped_folder

STEM: Final = 5
"""Letters compared as a word's stem: `reprocessed`, `reprocessing`."""

COMMON: Final = frozenset(
    re.findall(
        r"\w+",
        "a after all also although an and any are as at be been but by can do does every for from"
        " had has have how if in into is it its like may more most much my new no not of off on one"
        " only or other out over own same so still than that the their them then there these they"
        " this those though to too under up was were what when where which while who why will with"
        " without would you your",
    )
)
"""Words of every report."""

SAME: Final[Mapping[str, str]] = {
    word: meaning
    for meaning, words in {
        "state": "states ssm mamba mamba2 gdn deltanet delta recurrent rnn hybrid qwen nemotron"
        " granite qwen3next kda arrayscache linear",
        "window": "windows swa sliding rotating ring gemma gemma4 rotatingkvcache gpt",
        "drafter": "draft drafts mtp eagle dflash spec speculative speculation ngram",
        "adapter": "adapters lora loras",
        "store": "connector lmcache offloading external",
        "checkpoint": "checkpoints snapshot snapshots",
        "reprocess": "reprocessed reprocessing reprefill prefill prefills recompute recomputes"
        " recomputed processed evaluated",
        "reuse": "reused hit hits cached cache caching",
        "wrong": "garbage garbled corrupt corrupts corrupted corruption contaminated diverges"
        " nonsense",
        "crash": "crashes crashed crashing dies died kill kills killed assertion exception error"
        " abort aborts ends fatal",
        "erase": "erased evict evicts evicted eviction dropped discarded tombstone tombstoned"
        " pruned removed removes",
        "reasoning": "thinking think",
        "park": "parked ram host",
        "restore": "restores restored loadback load",
    }.items()
    for word in words.split()
}
"""Words of one meaning: reports name a thing after a model, a class of upstream's or a flag."""

VOTE: Final = 0.5
"""Factor for a scenario if all words of a server in a symptom belong to its engine."""

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


def ranked(words: str) -> list[Mapping[str, Any]]:
    """The shipped scenarios that match a symptom, best first; scored by BM25."""
    said = _words(words)
    if not said:
        msg = f"no word to search for in {words!r}; describe what you see, as a user would"
        raise InputError(msg)
    wanted = set(terms(words))
    contents, texts = _index()
    have = {word: sum(word in text for text in texts) for word in wanted}
    rarity = {
        word: math.log(1 + (len(texts) - n + 0.5) / (n + 0.5)) * (PAIR if " " in word else 1)
        for word, n in have.items()
    }
    mean = sum(sum(text.values()) for text in texts) / max(len(texts), 1)
    engine_of = {
        word: family.name for family in FAMILIES.values() for word in family.vocabulary.split()
    }
    votes = Counter(engine_of[word] for word in said if word in engine_of)
    found = []
    for content, text in zip(contents, texts, strict=True):
        share = votes[content["engine"]["name"]] / max(votes.total(), 1)
        damped = SATURATION * (1 - LENGTH + LENGTH * sum(text.values()) / mean)
        near = sum(
            rarity[word] * text[word] / (text[word] + damped) for word in wanted & text.keys()
        )
        found.append((-near * (1 + VOTE * share), content["name"], content))
    best = min((each[0] for each in found), default=0.0)
    ordered = sorted(found, key=lambda each: each[:2])
    return [content for score, _, content in ordered if score < 0 and score <= CLOSE * best]


def terms(text: str) -> Iterator[str]:
    """Stems and synonyms of a text's words, and its bigrams."""
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
    whole = re.sub(r"\bre-(?=p)", "re", text)
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
def _index() -> tuple[list[dict[str, Any]], list[Mapping[str, float]]]:
    contents = [tomllib.loads(file.read_text("utf-8")) for file in shipped_files()]
    threads = _threads()
    return contents, [_weighted(content, threads) for content in contents]


def _weighted(content: Mapping[str, Any], threads: Mapping[str, str]) -> Mapping[str, float]:
    """Words of a scenario, weighted by their place."""
    source, shows = content.get("source", {}), content.get("shows", {})
    engine, model = content["engine"], content["model"]
    seen = [value for part in ("before", "after") for value in shows.get(part, {}).values()]
    flags = engine.get("options", {}).items()
    cited = [source.get("issue", ""), *source.get("also", [])]
    parts: Mapping[str, Sequence[object]] = {
        "symptom": [shows.get("symptom", "")],
        "name": [content["name"]],
        "about": [content.get("about", "")],
        "threads": [threads.get(each, "") for each in cited],
        "source": [source.get("note", ""), *cited],
        "played": [
            engine["name"],
            content.get("class", ""),
            model.get("preset", ""),
            *flags,
            *seen,
        ],
    }
    found = defaultdict[str, float](float)
    for part, pieces in parts.items():
        for term in terms(" ".join(map(str, pieces))):
            found[term] += WEIGHTS[part]
    return dict(found)
