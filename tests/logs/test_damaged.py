"""Damaged logs: whatever the bytes, an answer or a clear word."""

import gzip
import json
from io import BytesIO
from pathlib import Path
from random import Random

import pytest

from cachesim.errors import InputError
from cachesim.lab.logs.lines import LONGEST_LINE, lines_of, pieces_of
from cachesim.lab.logs.whole import UserSettings, read_files, replays_of, why

DATA = Path(__file__).parent / "data"


def logs() -> list[bytes]:
    texts = []
    for path in sorted(DATA.glob("*.gz")):
        texts += [
            each["log"].encode()
            for each in json.loads(gzip.decompress(path.read_bytes()))["servers"]
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
                    chance.choice(b"0123456789-.") if chr(each).isdigit() and chance.random() < 0.5
                    else each for each in lines[at]
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
    log = damaged(chance.choice(logs()), chance)

    read = read_files([("damaged.log", BytesIO(log))])
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

    assert [len(each) for each in pieces] == [LONGEST_LINE, 5]
    assert [line.text for line in lines_of(BytesIO(b"slot one\n\nnothing\nsrv two"))] == [
        "slot one",
        "srv two",
    ]
