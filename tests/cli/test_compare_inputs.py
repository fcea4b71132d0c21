"""`compare` takes a scenario or a trace; standard input has no suffix to distinguish them."""

import io
import os
from pathlib import Path
from threading import Thread

import pytest

from cachesim.cli.compare import is_trace
from cachesim.cli.main import main
from cachesim.scenario.shipped import shipped_file
from tests.fixtures import Capture, Patch

EVENTS = b'[0.0, [{"type": "BlockStored", "block_hashes": ["0"], "block_size": 16}]]\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"input_length": 3, "output_length": 1, "hash_ids": [0]}\n', True),
        (EVENTS, True),
        (b"\n" + EVENTS, True),
        (b"\x1f\x8b\x08", True),
        (b'format = 1\nname = "a"\n', False),
        (b"# a scenario\nformat = 1\n", False),
        (b"[model]\npreset = 'dense'\n", False),
        (b"[[step]]\nprompt = 'a'\n", False),
        (b"", False),
    ],
)
def test_standard_input_is_a_trace_unless_it_begins_as_toml(
    monkeypatch: Patch, text: bytes, *, expected: bool
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))

    assert expected == is_trace("-")


def test_two_profiles_are_compared_on_a_scenario_from_standard_input(
    monkeypatch: Patch, capsys: Capture
) -> None:
    text = shipped_file("llama.cpp-three-requests").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))

    assert 1 == main(["compare", "-", "-p", "b11549", "-p", "b11549+erase-equal"])
    assert "2 of 3 requests differ; the first is B" in capsys.readouterr().out


def test_a_folder_of_several_scenarios_is_no_workload(tmp_path: Path, capsys: Capture) -> None:
    for name in ("a", "b"):
        text = shipped_file("llama.cpp-three-requests").read_bytes()
        (tmp_path / f"{name}.toml").write_bytes(text)

    assert 2 == main(["compare", str(tmp_path), "-p", "b11549", "-p", "b9538"])
    assert "compare takes one scenario, and these are 2" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_scenario_may_come_from_a_pipe_with_a_name(tmp_path: Path, capsys: Capture) -> None:
    pipe, text = tmp_path / "pipe", shipped_file("llama.cpp-three-requests").read_bytes()
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_bytes, args=(text,), daemon=True)
    writer.start()

    assert 0 == main(["run", str(pipe), "-p", "b11549", "--arithmetic", "ring"])
    assert "1 run, 1 as expected" in capsys.readouterr().out


def test_a_row_that_cannot_be_played_stands_beside_those_that_can(capsys: Capture) -> None:
    rows = ["-p", "b9538", "-p", "b9538,ctx_checkpoints=many", "--row", "llama.cpp@b11549"]

    assert 2 != main(["compare", "llama.cpp-three-requests", *rows])
    assert "'many'" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        ["run", "{file}"],
        ["sweep", "{file}"],
        ["compare", "llama.cpp-two-codes", "--rows", "{file}"],
        ["real", "vectors", "{file}"],
    ],
    ids=lambda command: command[0],
)
def test_a_binary_file_is_refused_with_the_byte_that_is_no_text(
    command: list[str], tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "binary.toml"
    file.write_bytes(b"a\xff\xfe\x00")

    assert 2 == main([each.format(file=file) for each in command])
    assert f"cachesim: {file}: is not UTF-8 text: byte 1 is 0xff\n" == capsys.readouterr().err


def test_a_log_without_a_miss_cannot_be_bisected(tmp_path: Path, capsys: Capture) -> None:
    first_request = Path("docs/examples/hybrid.log").read_bytes()[:1500]
    log = tmp_path / "server.log"
    log.write_bytes(first_request)

    assert 2 == main(["bisect", str(log)])
    assert (
        "cachesim: no miss to extract: no request that the replay explains lost any tokens\n"
        == capsys.readouterr().err
    )
