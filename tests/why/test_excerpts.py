"""Logs and recordings of reports and of earlier defects, each by the whole page that `why` prints.

An input is a line of `excerpts.jsonl`: a name, the text of a log or of recorded requests, and what
the user states of the server. `excerpts.txt` holds the page of each, then digests of its JSON, of
its HTML and of what a replay with other settings answers. `CACHESIM_UPDATE_SNAPSHOTS=1` writes them
anew; look at the difference before keeping it.
"""

import json
import os
from collections.abc import Iterator, Mapping
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from cachesim.errors import InputError
from cachesim.report.consoles import plain_text
from cachesim.report.html_document import page
from cachesim.report.recorded import dump_report
from cachesim.report.why import why_report
from cachesim.why.advise.what_if import answers, requested
from cachesim.why.explain.live import report_of_dump
from cachesim.why.explain.whole import UserSettings, read_files, replays_of, why
from cachesim.why.replay.replayed import Replay
from tests.dumps import read_dump

INPUTS = Path(__file__).with_name("excerpts.jsonl")
PAGES = Path(__file__).with_name("excerpts.txt")
RULE = "=" * 100
OTHERS = ("b9093", "b11549", "ctx_checkpoints=0")
"""Servers that a replay is asked for besides the log's own."""

CASES = {each["name"]: each for each in map(json.loads, INPUTS.read_text().splitlines())}
WANTED = dict(
    part.split("\n", 1) for part in PAGES.read_text().split(f"{RULE}\n") if part
)  # fmt: skip


def digest(value: object) -> str:
    return sha256(json.dumps(value, default=str).encode()).hexdigest()[:16]


def rebuilt(replay: Replay) -> Iterator[object]:
    """Facts of each prompt: its length, its turns, and its divergence from earlier ones."""
    earlier: list[Any] = []
    for request in replay.requests:
        if request.submitted is not None:
            prompt = request.submitted.prompt
            shared = [prompt.common(other) for other in earlier]
            yield (
                request.lengths.prompt.value,
                request.holder,
                request.submitted.user_starts,
                shared,
            )
            earlier.append(prompt)


def printed(case: Mapping[str, Any]) -> str:
    """The page of an excerpt, and its digests; or why it is refused."""
    files = [
        (name, BytesIO(text.encode("utf-8", "surrogateescape"))) for name, text in case["files"]
    ]
    try:
        if "wanted" not in case:
            found = report_of_dump(read_dump(*files[0]), source=files[0][0])
            return f"{plain_text(*dump_report(found, worst=99), width=100)}json {digest(found)}\n"
        read = read_files(files)
        replays = replays_of(read, UserSettings(**case["wanted"]))
        found = why(read, replays)
        asked = [
            [list(rebuilt(replay)), list(answers([replay], requested(replay.settings, OTHERS)))]
            for replay in replays
            if replay.settings.profile.startswith("llama.cpp@")
        ]
    except InputError as error:
        return f"refused: {error}\n"
    parts = why_report(found, worst=found["requests"])
    text = plain_text(*parts, width=100)
    html = digest(page("cachesim why", *parts))
    return f"{text}json {digest(found)}, HTML {html}, replays {digest(asked)}\n"


@pytest.mark.parametrize("name", CASES)
def test_the_page_of_an_excerpt_is_as_it_was(name: str) -> None:
    assert WANTED.get(name) == printed(CASES[name])


if os.environ.get("CACHESIM_UPDATE_SNAPSHOTS"):
    WANTED = {name: printed(case) for name, case in CASES.items()}
    PAGES.write_text("".join(f"{RULE}\n{name}\n{text}" for name, text in WANTED.items()))
