"""The exit status, and what each number means."""

from typing import Final

AS_EXPECTED: Final = 0
NOT_AS_EXPECTED: Final = 1
WRONG_USAGE: Final = 2
BROKEN_CONTRACT: Final = 3
INTERRUPTED: Final = 130
