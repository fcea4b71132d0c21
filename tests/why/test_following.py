"""A log that grows is told request by request, and nothing is played twice."""

import gzip
import json
import re
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from cachesim.why.explain.whole import Following, UserSettings, read_files, replays_of, why
from cachesim.why.replay.player import Player
from tests.fixtures import Capture, Patch, complaint, output

DATA = Path(__file__).parent / "data"
LOG = Path(__file__).parents[2] / "docs" / "examples" / "hybrid.log"


def a_log() -> bytes:
    """Twelve lives of June's server, one after the other."""
    text = gzip.decompress((DATA / "b9538-3.json.gz").read_bytes())
    return b"".join(server["log"].encode() for server in json.loads(text)["servers"][:12])


def followed(log: bytes, *, at_once: int) -> list[dict[str, Any]]:
    following = Following(UserSettings())
    pieces = [log[at : at + at_once] for at in range(0, len(log), at_once)]
    return [entry for piece in pieces for entry in following.take(piece)]


def at_the_end(log: bytes) -> list[dict[str, Any]]:
    read = read_files([("a.log", BytesIO(log))])
    entries: list[dict[str, Any]] = why(read, replays_of(read, UserSettings()))["requests"]
    return entries


@pytest.mark.parametrize("at_once", [700, 5000, 1 << 20])
def test_a_request_is_told_once_and_as_at_the_end(at_once: int) -> None:
    log = a_log()
    whole = at_the_end(log)
    told = followed(log, at_once=at_once)

    names = ("number", "line", "prompt_tokens", "cached", "processed", "slot")
    assert {each["number"] for each in told} == {each["number"] for each in whole}
    assert len(told) == len(whole)
    for each in told:
        assert {name: each[name] for name in names} == {
            name: whole[each["number"]][name] for name in names
        }
    agreeing = sum(each["agrees"] is True for each in told)
    assert agreeing >= len(whole) - 2  # what only later requests show is not known yet


def test_what_was_played_is_not_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log, launches = a_log(), 0
    launch = Player.launch

    def counted(player: Player, request: Any) -> None:
        nonlocal launches
        launches += 1
        launch(player, request)

    monkeypatch.setattr(Player, "launch", counted)
    at_once = len(followed(log, at_once=1 << 20))
    few, launches = launches, 0
    assert len(followed(log, at_once=500)) == at_once
    assert launches <= 2 * few


def quiet(preset: str) -> str:
    """A log of the newest server at the default verbosity, without its model's name."""
    servers = json.loads(gzip.decompress((DATA / "b11549-3.json.gz").read_bytes()))["servers"]
    logs: list[str] = [server["log"] for server in servers if server["preset"] == preset]
    return re.sub(r"loading model '[^']*'", "loading model 'm.gguf'", logs[0])


@pytest.mark.parametrize("preset", ["recurrent", "hybrid-delta"])
def test_states_are_inferred_while_a_log_grows(preset: str) -> None:
    entries = followed(quiet(preset).encode(), at_once=300)

    (first,) = [at for at, entry in enumerate(entries) if "inferred" in entry]
    assert "The log does not name the model's layers." in entries[first]["inferred"]
    assert all(entry["agrees"] for entry in entries[first:])
    assert first > 0
    assert list(range(len(entries))) == sorted(entry["number"] for entry in entries)


def test_states_are_inferred_of_each_server_of_a_log() -> None:
    log = quiet("recurrent").encode()
    entries = followed(log + log, at_once=300)

    assert [0, 1] == [entry["server"] for entry in entries if "inferred" in entry]


def test_full_attention_stays_while_a_log_grows() -> None:
    entries = followed(quiet("dense").encode(), at_once=300)

    assert entries
    assert not any("inferred" in entry for entry in entries)


def test_a_line_that_never_ends_is_not_kept() -> None:
    following = Following(UserSettings())
    for _ in range(8):
        assert following.take(b"x" * (1 << 20)) == []
    assert len(following._rest) == 1 << 20


def test_a_followed_pipe_is_explained_until_it_ends(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(LOG.read_bytes())))

    shown = output(capsys, ["why", "--follow", "-"])
    assert [0, 1, 2, 3, 4] == [*map(int, re.findall(r"(?m)^request (\d+)", shown))]


def test_what_cannot_be_followed_is_refused_with_the_command_that_reads_it(
    capsys: Capture,
) -> None:
    assert "`cachesim record` explains them as they arrive" in complaint(
        capsys, ["why", "--follow", str(LOG.with_name("recorded.jsonl"))]
    )
    assert "--follow reads one log, not 2" in complaint(
        capsys, ["why", "--follow", "a.log", "b.log"]
    )
