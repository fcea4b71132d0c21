"""What is printed where, and with which signs."""

import pytest

from cachesim.report.consoles import writable


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("utf-8", "20 → 0 · ─…é"), ("ascii", "20 -> 0 - -~?"), ("latin-1", "20 -> 0 - -~é")],
)
def test_signs_that_an_encoding_lacks_become_plainer_ones(encoding: str, expected: str) -> None:
    assert expected == writable("20 → 0 · ─…é", encoding)


def test_bars_and_lines_stay_readable_where_an_encoding_lacks_blocks() -> None:
    assert "##### .:-=+*%#" == writable("█████ ▁▂▃▄▅▆▇█", "ascii")
