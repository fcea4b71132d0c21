"""Damaged logs: whatever the bytes, an answer or a clear word."""

import bz2
import gzip
import json
import lzma
from codecs import BOM_UTF8
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path
from random import Random

import pytest

from cachesim.errors import InputError
from cachesim.why.explain.whole import UserSettings, open_log, read_files, replays_of, why
from cachesim.why.read.lines import LONGEST_LINE, lines_of, pieces_of
from tests.fixtures import Capture, Patch, complaint, output

DATA = Path(__file__).parent / "data"


def logs() -> list[bytes]:
    texts = []
    for path in sorted(DATA.glob("*.gz")):
        texts += [
            server["log"].encode()
            for server in json.loads(gzip.decompress(path.read_bytes())).get("servers", ())
        ]
    return texts


def damaged(log: bytes, chance: Random) -> bytes:
    """The log with some of it lost, doubled, swapped or overwritten."""
    lines = log.split(b"\n")
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(lines))
        match chance.randrange(8):
            case 0:
                del lines[at : at + chance.randint(1, 20)]
            case 1:
                lines[at] = lines[at][: chance.randint(0, len(lines[at]))]
            case 2:
                lines[at] = bytes(chance.randrange(256) for _ in range(40))
            case 3:
                lines.insert(at, lines[chance.randrange(len(lines))])
            case 4:
                lines[at] = bytes(
                    chance.choice(b"0123456789-.") if chr(line).isdigit() and chance.random() < 0.5
                    else line for line in lines[at]
                )  # fmt: skip
            case 5:
                lines = lines[:at]
            case 6:
                lines[at] = lines[at].decode("latin-1").encode("utf-16")
            case _:
                other = chance.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
        lines = lines or [b""]
    return b"\n".join(lines)


IMPOSSIBLE = {309_204}
"""Seeds of logs whose server could not have been started: a batch of one token."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [*range(40), 305_929, *IMPOSSIBLE])
def test_a_damaged_log_is_told_or_refused(seed: int) -> None:
    chance = Random(seed)

    read = read_files([("damaged.log", BytesIO(damaged(chance.choice(logs()), chance)))])
    if not read.servers or seed in IMPOSSIBLE:
        with pytest.raises(InputError, match=r"damaged\.log"):
            replays_of(read, UserSettings())
    else:
        assert json.loads(json.dumps(why(read, replays_of(read, UserSettings()))))["requests"]


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 5000, b"\xff\xfe", b"{" * 3000, bytes(range(256)) * 40]
)
def test_what_is_no_log_gets_a_clear_word(data: bytes) -> None:
    read = read_files([("noise.bin", BytesIO(data))])

    with pytest.raises(InputError, match=r"noise\.bin"):
        replays_of(read, UserSettings())


def test_a_line_without_an_end_is_cut() -> None:
    pieces = list(pieces_of(BytesIO(b"x" * (5 * LONGEST_LINE) + b"\nnext\n")))

    assert [len(piece) for piece in pieces] == [LONGEST_LINE, 5]
    assert [line.text for line in lines_of(BytesIO(b"slot one\n\nnothing\nsrv two"))] == [
        "slot one",
        "srv two",
    ]


# A compressed log is read as what is in it, or refused in words.

LOG = Path(__file__).parents[2] / "docs" / "examples" / "hybrid.log"
WORDS = ["why", "--worst", "0", "--format", "json"]


@pytest.mark.thorough
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_compressed_log_says_what_the_log_says(
    pack: Callable[[bytes], bytes], tmp_path: Path, capsys: Capture
) -> None:
    packed = tmp_path / "server.log"
    packed.write_bytes(pack(LOG.read_bytes()[:5000]))
    plain = tmp_path / "plain.log"
    plain.write_bytes(LOG.read_bytes()[:5000])

    found = output(capsys, [*WORDS, str(packed)])
    assert output(capsys, [*WORDS, str(plain)]).replace(str(plain), str(packed)) == found


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_one_that_is_cut_or_damaged_is_refused(
    pack: Callable[[bytes], bytes], tmp_path: Path, capsys: Capture
) -> None:
    data = pack(LOG.read_bytes())
    file = tmp_path / "server.log.gz"

    for wrong in (data[: len(data) // 2], data[:40] + bytes(40) + data[80:]):
        file.write_bytes(wrong)
        assert "is compressed, and cut or damaged" in complaint(capsys, [*WORDS, str(file)])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "says"), [("hybrid.log", "5 requests"), ("recorded.jsonl", "4 recorded requests")]
)
def test_it_comes_through_a_pipe_too(
    name: str, says: str, monkeypatch: Patch, capsys: Capture
) -> None:
    data = gzip.compress((LOG.parent / name).read_bytes())
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(data)))

    assert f"standard input: {says}" in output(capsys, ["why", "--worst", "0", "-"])


def test_a_mark_of_byte_order_hides_no_recorded_requests(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "recorded.jsonl"
    file.write_bytes(BOM_UTF8 + (LOG.parent / "recorded.jsonl").read_bytes())

    assert 4 == json.loads(output(capsys, [*WORDS, str(file)]))["totals"]["requests"]


@pytest.mark.parametrize(
    ("start", "program"), [(b"PK\x03\x04", "unzip -p"), (b"\x28\xb5\x2f\xfd", "zstd -dc")]
)
def test_of_other_kinds_the_program_is_named(
    start: bytes, program: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("cachesim.packed.find_spec", lambda _: None)
    file = tmp_path / "server.log"
    file.write_bytes(start + bytes(100))

    assert f"unpack it first, as `{program}` does" in complaint(capsys, [*WORDS, str(file)])


def test_a_message_with_colours_is_a_list_of_bytes_to_journald() -> None:
    log = LOG.read_bytes()
    coloured = [b"\x1b[32m" + line + b"\x1b(B\x1b[m" for line in log.splitlines()]
    journal = [json.dumps({"MESSAGE": list(line)}).encode() for line in coloured]

    assert [each.text for each in lines_of(BytesIO(log))] == [
        each.text for each in lines_of(BytesIO(b"\n".join(journal)))
    ]
    (no_bytes,) = lines_of(BytesIO(b'{"MESSAGE": [300, "slot"]}'))
    assert no_bytes.slot is None


def test_requests_to_any_http_server_are_no_lines_of_llama_server() -> None:
    line = b'::1 - - [28/Nov/2026:12:00:00 +0000] "POST /v1/chat/completions HTTP/1.1" 200 12\n'
    read = read_files([("nginx.log", BytesIO(3 * line))])

    with pytest.raises(InputError, match="no log of a known server: no line of 3 was recognised"):
        replays_of(read, UserSettings())


def test_of_a_scenario_the_command_that_runs_it_is_named() -> None:
    with pytest.raises(InputError) as refused:
        open_log("llama.cpp-three-requests")

    assert (
        "llama.cpp-three-requests: is a scenario, not a log; "
        "cachesim run llama.cpp-three-requests explains its misses"
    ) == str(refused.value)


def test_a_log_without_counts_has_no_total_of_prompt_tokens() -> None:
    log = b"".join(
        line for line in LOG.read_bytes().splitlines(keepends=True) if b"eval time" not in line
    )
    read = read_files([("uncounted.log", BytesIO(log))])

    assert why(read, replays_of(read, UserSettings()))["totals"]["prompt_tokens"] is None
