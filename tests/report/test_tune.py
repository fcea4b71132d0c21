"""What `tune` concludes follows from what was tried."""

from typing import Any

from cachesim.report.consoles import plain_text
from cachesim.report.tune import tune_page

MIB = 1 << 20


def tried(processed: int, mib: int, **changes: int) -> dict[str, Any]:
    return {
        "changes": changes,
        "processed": processed,
        "peak_bytes": mib * MIB,
        "context_bytes": 0,
        "failed": 0,
    }


def in_words(
    own: dict[str, Any], best: dict[str, Any], *rest: dict[str, Any], small: bool = True
) -> str:
    found = {
        "source": "a.log",
        "requests": 2,
        "tried": [own, best, *rest],
        "front": [best],
        "own": own,
        "recommended": best,
        "command": "llama-server",
        "assumed": [],
        "small_network": small,
    }
    return " ".join(plain_text(tune_page(found)).split())


def test_where_no_setting_helps_that_comes_first_and_nothing_is_drawn() -> None:
    said = in_words(tried(100, 7), tried(100, 4, cache_ram=0))

    assert (
        "None of the settings tried prefills fewer tokens. The same number of tokens is prefilled "
        "with 3 MiB less: cache_ram=0."
    ) in said
    assert "o now" not in said


def test_a_little_more_is_not_called_the_same() -> None:
    said = in_words(tried(1000, 7), tried(1005, 4, cache_ram=0), tried(999, 9, parallel=2))

    assert "None of the settings tried prefills clearly fewer tokens." in said
    assert "5 more tokens are prefilled with 3 MiB less: cache_ram=0." in said
    assert "o now" in said


def test_whose_bytes_are_counted_is_said_unless_they_are_the_models() -> None:
    own = tried(100, 7)

    assert "The MiB are those of a small network" in in_words(own, own)
    assert "small network" not in in_words(own, own, small=False)
