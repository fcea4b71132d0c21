"""Metadata of GGUF files: what real files have, and what damaged ones end with."""

import struct
from pathlib import Path

import pytest

from cachesim.cli.main import main
from cachesim.errors import InputError
from cachesim.lab.logs.sizes import read_header, sizes_of_fields, sizes_of_gguf
from cachesim.lab.real.llama_cpp.gguf import model_keys, write_model
from cachesim.model.presets import preset

Capture = pytest.CaptureFixture[str]

LOG = "docs/examples/hybrid.log"


def text(value: str, order: str = "<") -> bytes:
    return struct.pack(f"{order}Q", len(value)) + value.encode()


def header(*pairs: bytes, version: int = 3, order: str = "<", keys: int | None = None) -> bytes:
    count = len(pairs) if keys is None else keys
    return b"GGUF" + struct.pack(f"{order}IQQ", version, 0, count) + b"".join(pairs)


def number(key: str, value: int, order: str = "<") -> bytes:
    return text(key, order) + struct.pack(f"{order}II", 4, value)


NAME = text("general.architecture") + struct.pack("<I", 8) + text("llama")
NESTED = text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 2000
STRINGS = text("a") + struct.pack("<IIQ", 9, 8, 1 << 40)


def refused(data: bytes, folder: Path) -> str:
    file = folder / "model.gguf"
    file.write_bytes(data)
    with pytest.raises(InputError) as caught:
        sizes_of_gguf(file)
    return str(caught.value).removeprefix(f"--gguf {file}: ")


@pytest.mark.parametrize("name", ["dense", "hybrid", "hybrid-swa"])
def test_the_file_that_a_real_server_loads_has_the_keys_that_were_written(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.gguf"
    write_model(preset(name), file)
    expected = {key: each.value for key, each in model_keys(preset(name)).items()}
    found = read_header(file)

    assert list(expected) == list(found)
    assert sizes_of_fields(expected) == sizes_of_gguf(file)[0]


def test_a_file_of_the_other_byte_order_is_read(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(header(number("a", 7, ">"), order=">"))

    assert {"a": 7} == read_header(file)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is no GGUF file: it begins with b''"),
        (b"PK\3\4 and more", "is no GGUF file: it begins with b'PK"),
        (header(version=1), "is GGUF version 1; versions 2 and 3 are read"),
        (header(NESTED), "key 'a' is an array of arrays, which no model's header has"),
        (header(STRINGS), "key 'a' brings the strings to more than"),
        (header(keys=1 << 60), "has 1152921504606846976 keys"),
        (header(text("a") + struct.pack("<I", 77)), "key 'a' has a value of type 77"),
        (header(NAME), "has no usable key 'llama.block_count'"),
        (header(number("llama.block_count", 4)), "has no usable key 'general.architecture'"),
        (header(NAME, number("llama.block_count", 0)), "has no usable key 'llama.block_count'"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(data: bytes, why: str, tmp_path: Path) -> None:
    assert refused(data, tmp_path).startswith(why)


def test_a_file_that_is_cut_anywhere_in_its_header_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "whole.gguf"
    write_model(preset("dense"), file)
    whole = file.read_bytes()
    end = whole.index(b"tokenizer.ggml.tokens")

    for size in (*range(4, 600, 7), end, end + 100):
        assert "is cut: the file of" in refused(whole[:size], tmp_path)


@pytest.mark.parametrize("data", [header(NESTED), header(NAME, keys=5), b"GGUF\3"])
def test_tune_ends_with_status_2(data: bytes, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(data)

    assert 2 == main(["why", "--tune", LOG, "--gguf", str(file)])
    assert f"--gguf {file}" in " ".join(capsys.readouterr().err.split()).replace("\n", "")


def test_a_model_that_is_not_there_is_named(capsys: Capture) -> None:
    assert 2 == main(["why", "--tune", LOG, "--gguf", "no.gguf"])
    assert "--gguf no.gguf: cannot be read: No such file" in capsys.readouterr().err
