"""Text of a file, a log or a server, made safe to print.

A scenario's `about` may hold an escape sequence that moves the cursor, sets a terminal's title or
hides what follows. Everything but JSON is printed through here.
"""

from typing import Final

KEPT: Final = frozenset("\n\t")

STEERING: Final = (
    *(code for code in range(0x20) if chr(code) not in KEPT),
    *range(0x7F, 0xA0),
    0x061C,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
)
"""Controls of terminals (C0, DEL, C1), of the writing direction and of lines; lone surrogates."""

SPELLED: Final = {code: ascii(chr(code))[1:-1] for code in STEERING}


def printable(text: str) -> str:
    """The text with terminal control characters spelled out."""
    return text.translate(SPELLED)
