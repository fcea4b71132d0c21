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
    own = tried(100, 7)
    said = in_words(own, own, tried(100, 4, cache_ram=0))

    assert (
        "The settings as they are: none of the 3 settings tried is proven to save tokens." in said
    )
    assert "o now" not in said


def test_what_is_not_proven_is_not_recommended_and_the_reason_stands_there() -> None:
    own = tried(100, 7)
    found = {
        "source": "a.log", "requests": 2, "tried": [own, tried(50, 7, cache_ram=0)], "front": [],
        "own": own, "recommended": own, "command": "llama-server", "withheld": "No setting is.",
        "left_out_says": "Left out: 1 request.",
    }  # fmt: skip
    said = plain_text(*tune_report(found))

    assert ["No setting is.", "Left out: 1 request."] == said.split("\n")[2::2][:2]
    assert "cache-ram" not in said


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
