"""Saved states as bytes: the same after a round trip, refused when damaged."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.llamacpp.memory.blob import Blob, RowBlock, pack, unpack
from cachesim.engines.llamacpp.memory.rules import B11434
from cachesim.errors import BlobError
from cachesim.model.presets import PRESETS
from tests.engines.llamacpp.memory.lab import Lab


def saved(preset: str, *, whole: bool = False) -> Blob:
    lab = Lab(preset, B11434)
    assert lab.go_on(0, 9)
    assert lab.go_on(1, 3)
    return lab.context.state_write(-1 if whole else 0)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_state_is_the_same_after_a_round_trip(preset: str, whole: bool) -> None:
    blob = saved(preset, whole=whole)
    again = unpack(pack(blob))

    assert (blob.size, blob.source, len(blob.fields)) == (
        again.size,
        again.source,
        len(again.fields),
    )
    for one, other in zip(blob.fields, again.fields, strict=True):
        if isinstance(one, RowBlock):
            assert isinstance(other, RowBlock)
            assert one.data is not None
            assert other.data is not None
            assert (one.data.dtype, one.data.tobytes()) == (other.data.dtype, other.data.tobytes())
    assert pack(blob) == pack(again)


def test_the_convolutions_of_both_layers_stand_before_their_states() -> None:
    rows = [part.row_bytes for part in saved("recurrent").fields if isinstance(part, RowBlock)]

    assert [576, 576, 1024, 1024] == rows


def test_a_cut_state_stays_cut() -> None:
    assert 100 == unpack(pack(saved("dense").cut(100))).size


PACKED = pack(saved("hybrid"))


@given(st.integers(0, len(PACKED) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_noticed(at: int, change: int) -> None:
    damaged = bytearray(PACKED)
    damaged[at] ^= change

    with pytest.raises(BlobError):
        unpack(bytes(damaged))


@given(st.integers(0, len(PACKED) - 1))
def test_missing_bytes_are_noticed(length: int) -> None:
    with pytest.raises(BlobError):
        unpack(PACKED[:length])


def with_body(body: bytes, version: int = 1) -> bytes:
    return b"CSST" + struct.pack("<IIQ", version, zlib.crc32(body), len(body)) + body


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not begin with CSST"),
        (b"GGUF" + bytes(40), "does not begin with CSST"),
        (b"CSST\1", "cut short within its first 20 bytes"),
        (with_body(b"", version=9), "has format 9; this cachesim reads 1"),
        (with_body(struct.pack("<iq", 0, 0) + b"X"), "is no kind of field"),
        (with_body(struct.pack("<iq", 0, 0) + b"W\0"), "a field reaches beyond its end"),
        (
            with_body(struct.pack("<iq", 0, 0) + b"R" + struct.pack("<iqI", 0, 4, 1) + b"O       "),
            "'O' is no element type",
        ),
    ],
)
def test_what_is_no_state_is_refused_with_a_reason(data: bytes, message: str) -> None:
    with pytest.raises(BlobError, match=message):
        unpack(data)


def test_rows_on_the_device_cannot_be_packed() -> None:
    with pytest.raises(BlobError, match="stayed on the device"):
        pack(saved("dense").on_device())


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_state_is_a_copy(preset: str) -> None:
    lab = Lab(preset, B11434)
    assert lab.go_on(0, 9)
    blob = lab.context.state_seq_get_data(0)
    before = pack(blob)
    lab.context.seq_rm(0, -1, -1)
    lab.said[0] = []
    assert lab.say({0: [301] * 9})
    lab.context.clear(data=True)

    assert before == pack(blob)


def test_a_state_of_another_model_is_refused() -> None:
    for one, other in (("dense", "swa"), ("hybrid", "recurrent"), ("hybrid", "hybrid-swa")):
        lab = Lab(other, B11434)
        assert 0 == lab.context.state_seq_set_data(saved(one), 0)
        lab.context.check_integrity()
        assert not np.any(lab.context.seq_pos_max(0) >= 0)
