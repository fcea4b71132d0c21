"""`compare` takes a scenario or a trace; standard input has no suffix that tells them apart."""

import io

import pytest

from cachesim.cli.compare import is_trace
from cachesim.cli.main import main

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
    monkeypatch: pytest.MonkeyPatch, text: bytes, *, expected: bool
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))

    assert expected == is_trace("-")


def test_a_comparison_of_which_no_row_can_be_played_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = ["compare", "llama.cpp-three-requests", "-p", "b9538", "--set", "ctx_checkpoints=many"]

    assert 2 == main(line)
    assert "write a whole number from 0 to 65536" in capsys.readouterr().err


def test_a_row_that_cannot_be_played_stands_beside_those_that_can(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = ["-p", "b9538", "-p", "b9538,ctx_checkpoints=many", "--row", "llama.cpp@b11549"]

    assert 2 != main(["compare", "llama.cpp-three-requests", *rows])
    assert "'many'" in capsys.readouterr().out
