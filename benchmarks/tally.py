"""The cost of each function of ours: its calls, its seconds, and its memory.

    ours ──► library ──► library        everything below is the cost of the function of ours that
      └────► ours                       stands nearest above it

A loop in brackets (a comprehension, a generator) counts for the function it is written in. Time
is charged between two calls or returns, so the tally's own work is nobody's.
"""

import sys
import time
import tracemalloc
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import cachesim

HOME: Final = Path(cachesim.__file__).parent


@dataclass(slots=True)
class Account:
    """The cost charged to one function."""

    calls: int = 0
    spent: int = 0  # nanoseconds, or bytes


class Tally(ABC):
    """Accounts of all functions of ours that run while it is watching, in the order they begin."""

    def __init__(self) -> None:
        self._outside = Account()
        self._stack = [self._outside]
        self._names: dict[CodeType, str | None] = {}
        self._accounts: dict[str, Account] = {}

    def of(self, work: Callable[[], object]) -> Mapping[str, Account]:
        """The accounts of one piece of work."""
        sys.setprofile(self._note)
        try:
            self.begin()
            work()
        finally:
            sys.setprofile(None)
        return self._accounts

    @abstractmethod
    def begin(self) -> None:
        """From here on something is spent."""

    @abstractmethod
    def spent(self) -> int:
        """The cost since its start."""

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        self._stack[-1].spent += self.spent()
        if event == "call":
            self._stack.append(self._entered(frame.f_code))
        elif event == "return" and len(self._stack) > 1:
            self._stack.pop()
        self.begin()

    def _entered(self, code: CodeType) -> Account:
        """The account of a function; other code counts for its caller."""
        if code not in self._names:
            self._names[code] = name_of(code)
        name = self._names[code]
        if name is None:
            return self._stack[-1]
        account = self._accounts.setdefault(name, Account())
        account.calls += 1
        return account


def name_of(code: CodeType) -> str | None:
    """A function's module and name, if it is ours."""
    path = Path(code.co_filename)
    if code.co_name.startswith("<") or not path.is_relative_to(HOME):
        return None
    module = path.relative_to(HOME).with_suffix("").parts
    return ".".join((*module, code.co_qualname))


class Clock(Tally):
    """Charges nanoseconds of the processor's time."""

    def __init__(self) -> None:
        super().__init__()
        self._since = 0

    def begin(self) -> None:
        """Look at the clock."""
        self._since = time.thread_time_ns()

    def spent(self) -> int:
        """The time since."""
        return time.thread_time_ns() - self._since


class Memory(Tally):
    """Charges bytes: the peak of memory above its level at the start."""

    def __init__(self) -> None:
        super().__init__()
        self._held = 0

    def of(self, work: Callable[[], object]) -> Mapping[str, Account]:
        """The same, while Python keeps account of its memory."""
        tracemalloc.start()
        try:
            return super().of(work)
        finally:
            tracemalloc.stop()

    def begin(self) -> None:
        """Record the held bytes."""
        tracemalloc.reset_peak()
        self._held, _ = tracemalloc.get_traced_memory()

    def spent(self) -> int:
        """The most that was held since, above that."""
        return tracemalloc.get_traced_memory()[1] - self._held
