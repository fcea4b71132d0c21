"""The conclusions of `tune` follow from its trials."""

from typing import Any

from rich.console import Group, RenderableType

from cachesim.report.consoles import plain_text
from cachesim.report.html_document import page
from cachesim.report.why import tune_report
from cachesim.why.infer.sizes import ASSUMED, WHOSE

MIB = 1 << 20


def tried(processed: int, mib: int, **changes: int) -> dict[str, Any]:
    return {
        "changes": changes,
        "flags": [f"--{name.replace('_', '-')} {value}" for name, value in changes.items()],
        "processed": processed,
        "peak_bytes": mib * MIB,
        "context_bytes": 0,
        "failed": 0,
    }


def page_of(
    own: dict[str, Any], best: dict[str, Any], *rest: dict[str, Any], says: str = ""
) -> RenderableType:
    found = {
        "source": "a.log",
        "requests": 2,
        "tried": [own, best, *rest],
        "front": [best],
        "own": own,
        "recommended": best,
        "command": "llama-server",
        "assumed": [],
        "bytes_say": says,
    }
    return Group(*tune_report(found))


def in_words(own: dict[str, Any], best: dict[str, Any], *rest: dict[str, Any]) -> str:
    return " ".join(plain_text(page_of(own, best, *rest)).split())


def test_where_no_setting_helps_that_comes_first_and_nothing_is_drawn() -> None:
    said = in_words(tried(100, 7), tried(100, 4, cache_ram=0))

    assert (
        "None of the settings tried prefills fewer tokens. The same number of tokens is prefilled "
        "with 3.0 MiB less: --cache-ram 0."
    ) in said
    assert "o now" not in said


def test_a_little_more_is_not_called_the_same() -> None:
    said = in_words(tried(1000, 7), tried(1005, 4, cache_ram=0), tried(999, 9, parallel=2))

    assert "None of the settings tried prefills clearly fewer tokens." in said
    assert "5 more tokens are prefilled with 3.0 MiB less: --cache-ram 0." in said
    assert "o now" in said


def test_whose_bytes_are_counted_is_said() -> None:
    own = tried(100, 7)

    assert "a small network" in plain_text(page_of(own, own, says=WHOSE[ASSUMED]))


def signs_of(page: RenderableType, *, width: int = 80) -> tuple[str, list[str]]:
    lines = plain_text(page, width=width).splitlines()
    rows = [line.partition("|")[2] for line in lines if "|" in line]
    at = next(i for i, line in enumerate(lines) if line.startswith(14 * " ") and "held" in line)
    legend = [line.strip() for line in lines[at + 1 :]]
    return "".join(sorted("".join(rows).replace(" ", ""))), legend


def test_a_plot_marks_what_is_now_and_what_is_recommended() -> None:
    page = page_of(tried(900, 3), tried(100, 7, parallel=2), tried(500, 9, parallel=3))

    assert ("*.o", ["o now   * recommended   . tried"]) == signs_of(page)


def test_where_both_share_a_place_in_the_plot_a_sign_says_so() -> None:
    page = page_of(tried(1001, 3), tried(1000, 3, parallel=2), tried(90_000, 90, parallel=3))

    assert (".@", ["@ now, and recommended   . tried"]) == signs_of(page)


def test_a_plot_is_as_wide_as_the_terminal() -> None:
    page = page_of(tried(900, 3), tried(100, 7, parallel=2), tried(500, 900, parallel=3))

    assert ("*.o", ["o now", "* recommended", ". tried"]) == signs_of(page, width=40)
    assert 40 == max(map(len, plain_text(page, width=40).splitlines()))


def test_a_page_has_a_drawing_in_place_of_the_signs() -> None:
    shown = page("t", page_of(tried(900, 3), tried(100, 7, parallel=2), tried(500, 9, parallel=3)))

    assert "<pre>" not in shown
    assert 'class="chart"' in shown
    assert all(word in shown for word in ("now", "recommended", "tried", "--parallel 2"))


def test_a_token_of_thousands_is_no_reason_for_another_setting() -> None:
    said = plain_text(page_of(tried(2933, 9), tried(2932, 7, parallel=1)))

    assert "none of the settings tried prefills clearly fewer" in " ".join(said.lower().split())
    assert "1 fewer token is prefilled with 2.0 MiB less: --parallel 1" in " ".join(said.split())
    assert "0.0 %" not in said
