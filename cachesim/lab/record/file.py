"""The file of recorded requests: a line each, written atomically.

A line goes out in one write, at the end of a file that only its owner can read. Where a write
fails or is cut short, what it left is taken back, so that the file always ends with a whole line.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cachesim.files import not_writable, refuse_existing

OWNER_ONLY: Final = 0o600


class RecordFile:
    """A writer of lines until it is closed, or the disk is full."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0
        self.problem = ""  # why writing has stopped
        self._size = 0
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._file: int | None = os.open(path, flags, OWNER_ONLY)
        except (OSError, ValueError) as error:
            refuse_existing(path, "--output")
            raise not_writable(path, "--output", error) from None

    def write(self, entry: Mapping[str, Any]) -> bool:
        """Write a line; False once a write failed."""
        if self._file is None:
            return False
        text = json.dumps(entry, ensure_ascii=True, separators=(",", ":"))
        line = text.encode("ascii") + b"\n"
        try:
            written = os.write(self._file, line)
            if written != len(line):
                written += os.write(self._file, line[written:])  # says why, if it fails again
        except OSError as error:
            why = error.strerror or str(error)
            self.problem = why
            if self._file is not None:
                try:
                    os.ftruncate(self._file, self._size)
                except OSError:
                    self.problem = f"{why}; the last line is cut"
            self.close()
            return False
        self._size += len(line)
        self.lines += 1
        return True

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
