"""A compressed log is read as what is in it, or refused in words."""

import bz2
import gzip
import json
import lzma
from codecs import BOM_UTF8
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from cachesim.cli.main import main

LOG = Path(__file__).parents[2] / "docs" / "examples" / "hybrid.log"
WORDS = ["why", "--worst", "0", "--format", "json"]


@pytest.mark.thorough
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_compressed_log_says_what_the_log_says(
    pack: Callable[[bytes], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "server.log"
    packed.write_bytes(pack(LOG.read_bytes()[:5000]))
    plain = tmp_path / "plain.log"
    plain.write_bytes(LOG.read_bytes()[:5000])

    assert 0 == main([*WORDS, str(packed)])
    found = capsys.readouterr().out
    assert 0 == main([*WORDS, str(plain)])

    assert capsys.readouterr().out.replace(str(plain), str(packed)) == found


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_one_that_is_cut_or_damaged_is_refused(
    pack: Callable[[bytes], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = pack(LOG.read_bytes())
    file = tmp_path / "server.log.gz"

    for wrong in (data[: len(data) // 2], data[:40] + bytes(40) + data[80:]):
        file.write_bytes(wrong)
        assert 2 == main([*WORDS, str(file)])
        assert "is compressed, and cut or damaged" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "says"), [("hybrid.log", "5 requests"), ("recorded.jsonl", "4 recorded requests")]
)
def test_it_comes_through_a_pipe_too(
    name: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = gzip.compress((LOG.parent / name).read_bytes())
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(data)))

    assert 0 == main(["why", "--worst", "0", "-"])
    assert f"standard input: {says}" in capsys.readouterr().out


def test_a_mark_of_byte_order_hides_no_recorded_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recorded.jsonl"
    file.write_bytes(BOM_UTF8 + (LOG.parent / "recorded.jsonl").read_bytes())

    assert 0 == main([*WORDS, str(file)])
    assert 4 == json.loads(capsys.readouterr().out)["totals"]["requests"]


@pytest.mark.parametrize(
    ("start", "program"), [(b"PK\x03\x04", "unzip -p"), (b"\x28\xb5\x2f\xfd", "zstd -dc")]
)
def test_of_other_kinds_the_program_is_named(
    start: bytes,
    program: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cachesim.packed.find_spec", lambda _: None)
    file = tmp_path / "server.log"
    file.write_bytes(start + bytes(100))

    assert 2 == main([*WORDS, str(file)])
    assert f"unpack it first, as `{program}` does" in capsys.readouterr().err
