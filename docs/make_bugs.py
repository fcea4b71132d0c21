"""Writes the table of known defects from what `python -m benchmarks.bugs --file` kept.

python -m benchmarks.bugs --how guided --seeds 101 --file docs/measurements/bugs.csv
PYTHONPATH=. python docs/make_bugs.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from measured import FOLDER, Measured, hold

from benchmarks.bugs import EARLIER, HEADS, Row, cells, faster, misses, read
from cachesim.typed import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept(Measured):
    """A measurement whose numbers are a CSV file."""

    def numbers(self) -> Json:
        """The searches."""
        return list(read(FOLDER / f"{self.name}.csv").values())


def written(told: Json) -> str:
    """The table, the factor, and the number of misses of the guided search."""
    rows: Sequence[Row] = told
    lines = ["| " + " | ".join(HEADS) + " |", "|---|" + "---:|" * (len(HEADS) - 1)]
    lines += ["| " + " | ".join(line) + " |" for line in cells(rows)]
    factors = {other: faster(rows, "guided", other) for other in ("random", EARLIER)}
    for other, factor in factors.items():
        hold(fact=factor is not None and factor > 1, what=f"guided is faster than {other}")
    times = " and ".join(
        f"{factor:.1f} times faster than `{how}`" for how, factor in factors.items()
    )
    said = f"In the median over defects, `guided` is {times}."
    return "\n".join(
        (*lines, "", f"{said} It missed {len(list(misses(rows, 'guided')))} at times.")
    )


PAGE: Final = _Kept(name="bugs", maker="make_bugs.py", written=written)

if __name__ == "__main__":
    PAGE.draw()
