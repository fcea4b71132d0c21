"""Recorded requests, read as the commands read them."""

from typing import BinaryIO

from cachesim.why.read.dump import DumpReader, Recorded


def read_dump(name: str, file: BinaryIO) -> list[Recorded]:
    reader = DumpReader()
    reader.read(name, file)
    return reader.requests
