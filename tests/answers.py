"""Answers to an exercise that mean the same, for the terminal's check and for the page's."""

from typing import Final

SAME_ANSWERS: Final = (
    ("no", "False"), ("N", "no"), ("No.", "False"), ("True", "yes"), ("`y`", "True"),
    ("007", "7"), ("9.0", "9"), ("9.", "9"), (" 9 ", "9"), (" ' 9 ' ", "9"), ("-1.00", "-1"),
    ("-0", "0"), ("Eight", "8"), ("zero", "0"), ("twelve.", "12"), ("8", "eight"),
    ("--ctx-checkpoints", "ctx_checkpoints"),
)  # fmt: skip
OTHER_ANSWERS: Final = (
    ("no", "True"), ("nothing", "no"), ("9.5", "9"), ("90", "9"), ("nine", "8"), ("1.0.0", "1"),
    ("thirteen", "13"), ("constructor", "toString"), ("--cache-ram", "ctx_checkpoints"),
)  # fmt: skip
