"""The overview: names whole, patches whole, and words that do not contradict each other."""

import tomllib
from pathlib import Path

import pytest

from cachesim import run_scenario
from cachesim.engines.events import Event
from cachesim.engines.llamacpp.vocabulary.events import CheckpointCreated, MemoryCut, PromptCleared
from cachesim.play.result import Run
from cachesim.report.chain import chain
from cachesim.report.consoles import plain_text, writable
from cachesim.report.story import event_lines
from cachesim.report.tables import broken
from cachesim.scenario.shipped import shipped_file
from tests.fixtures import Capture, Patch, output

SCENARIO = """
format = 1
name = "{name}"
model = {{ preset = "dense" }}
engine = {{ name = "llama.cpp", profiles = ["b9538+24143+24035-lcp+erase-equal+25592"] }}
spans = {{ S = 20 }}
step = [{{ prompt = "S", predict = 1 }}]
"""


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_long_names_and_profiles_are_shown_whole(
    columns: str, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    names = ["a" * 58, "b-" * 20 + "b"]
    for name in names:
        (tmp_path / f"{name}.toml").write_text(SCENARIO.format(name=name))

    out = output(capsys, ["run", str(tmp_path), "--arithmetic", "ring"])
    words = out.replace("+", " +").split()
    assert set(names) <= set(words)
    assert {"+24143", "+24035-lcp", "+erase-equal", "+25592"} <= set(words)


def test_an_expected_wrong_answer_is_not_called_ok(capsys: Capture) -> None:
    names = ["llama.cpp-three-requests", "llama.cpp-three-requests-dense"]

    lines = output(capsys, ["run", *names, "--arithmetic", "ring"]).splitlines()
    assert ["profile", "cached,", "by", "request", "answer", "expected"] == lines[0].split()
    assert ["WRONG", "yes"] == lines[2].split()[-2:]


def test_a_profile_is_broken_between_its_patches() -> None:
    profile = "llama.cpp@b11549+erase-equal+24143"

    assert "llama.cpp@b11549\n+erase-equal+24143" == broken(profile, 18)
    assert "b11549+24143" == broken("b11549+24143", 18)


# The walk to what went wrong: from where a checkpoint was made to the answer that it spoiled.


def three_requests(profile: str) -> Run:
    text = shipped_file("llama.cpp-three-requests").read_text(encoding="utf-8")
    return run_scenario(tomllib.loads(text), profile=profile)


def walked(run: Run, index: int) -> list[tuple[str, str, str]]:
    return [
        (link.word, run.steps[link.step].name, run.steps[link.step].events[link.event].name())
        for link in chain(run, index)
    ]


def test_a_wrong_answer_leads_back_to_the_step_that_made_the_checkpoint() -> None:
    assert [
        ("made", "A", "checkpoint-created"),
        ("kept", "B", "checkpoint-kept"),
        ("restored", "C", "checkpoint-restored"),
        ("wrong", "C", "slot-released"),
    ] == walked(three_requests("llama.cpp@b11549"), 2)


def test_lost_reuse_leads_from_what_was_equal_to_each_event_that_took_tokens() -> None:
    run = three_requests("llama.cpp@b11549+erase-equal")
    words = [word for word, _, _ in walked(run, 2)]

    assert "match" == words[0]
    assert {"lost"} == set(words[1:-1])
    assert "answered" == words[-1]


def test_the_last_station_says_what_the_step_came_to() -> None:
    wrong = chain(three_requests("llama.cpp@b11549"), 2)[-1]
    lost = chain(three_requests("llama.cpp@b11549+erase-equal"), 2)[-1]

    assert wrong.sentence.startswith("generated token 1 is token ")
    assert "0 of 40 tokens cached" == lost.sentence


def test_a_right_answer_that_lost_nothing_has_no_walk() -> None:
    assert () == chain(three_requests("llama.cpp@b11549"), 0)


# What is printed where, and with which signs.


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("utf-8", "20 → 0 · ─…é"), ("ascii", "20 -> 0 - -~?"), ("latin-1", "20 -> 0 - -~é")],
)
def test_signs_that_an_encoding_lacks_become_plainer_ones(encoding: str, expected: str) -> None:
    assert expected == writable("20 → 0 · ─…é", encoding)


def test_bars_and_lines_stay_readable_where_an_encoding_lacks_blocks() -> None:
    assert "##### .:-=+*%#" == writable("█████ ▁▂▃▄▅▆▇█", "ascii")


# Events as lines: a sign for the tone, then what the event itself says.


def shown(*events: Event) -> list[str]:
    return plain_text(event_lines(events)).splitlines()


def test_a_line_begins_with_a_sign_for_what_it_means_for_the_tokens() -> None:
    made = CheckpointCreated(index=1, most=32, pos_min=3, pos_max=3, n_tokens=4, size=9)
    assert ["  + checkpoint 4[3..3] is saved, 1 of at most 32"] == shown(made)
    assert ["  - memory cannot be cut at position 7"] == shown(
        MemoryCut(slot=0, n_tokens=7, p0=7, removed=False)
    )


def test_what_an_event_means_may_depend_on_its_numbers() -> None:
    full, empty = PromptCleared(slot=0, n_tokens=5), PromptCleared(slot=0, n_tokens=0)
    assert ("loss", "quiet") == (full.loudness(), empty.loudness())


def test_one_token_is_one_token() -> None:
    assert ["  - slot 0 is cleared of 1 token"] == shown(PromptCleared(slot=0, n_tokens=1))


def test_a_long_line_goes_on_below_its_words() -> None:
    lines = shown(MemoryCut(slot=0, n_tokens=int("9" * 60), p0=1, removed=True))
    assert 2 == len(lines)
    assert lines[1].startswith("    ")
