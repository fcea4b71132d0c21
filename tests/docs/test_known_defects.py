"""The table of known defects is that of the searches kept beside it."""

import make_bugs

from benchmarks.bugs import Row
from benchmarks.defects import defects
from benchmarks.searches import METHODS

ROWS: list[Row] = make_bugs.PAGE.numbers()


def test_the_table_is_that_of_its_numbers() -> None:
    assert make_bugs.PAGE.is_current()


def test_every_defect_was_searched_for_by_every_search() -> None:
    known = {(each.name, str(each.profile), each.model) for each in defects()}

    assert len(known) >= 80
    for how in METHODS:
        assert known == {(e.defect, e.profile, e.model) for e in ROWS if e.how == how}
