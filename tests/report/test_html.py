"""The page as a file: one, small, closed to the network, deaf to what texts would have it do."""

import copy
import json
import re
import tracemalloc
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

import cachesim
from cachesim.cli.main import main
from cachesim.errors import InputError
from cachesim.play import run
from cachesim.play.result import Run
from cachesim.report.consoles import plain_text
from cachesim.report.document import SENTENCES, FittingTable
from cachesim.report.html import (
    LIMIT,
    SCRIPTS,
    TooLargeError,
    beginning,
    drawn,
    fragment,
    island,
    packed,
    page,
    page_of_most,
    thinner,
)
from cachesim.scenario import full_profile, load, loads
from cachesim.scenario.shipped import shipped_file
from cachesim.typed import there_is
from tests.report.hostile import hostile_runs

JUDGED = ("llama.cpp-three-requests", "llama.cpp-24143-load-consumes-entry")


def runs_of(name: str) -> list[Run]:
    scenario = load(shipped_file(name))
    return [
        run(scenario, full_profile(scenario.engine.name, profile), detail=True)
        for profile in scenario.engine.profiles
    ]


@pytest.fixture(scope="module")
def three() -> list[Run]:
    return runs_of("llama.cpp-three-requests")


class Elements(HTMLParser):
    """The elements of a page, and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] == "script":
            self.scripts[-1] += data


def unpacked(value: Any) -> Any:
    """Packed data as unpacked by the page's own script."""
    pool: list[Any] = []

    def revived(each: Any) -> Any:
        if isinstance(each, list):
            return [revived(inner) for inner in each]
        if not isinstance(each, dict):
            return each
        if "$" in each:
            return pool[each["$"]] if isinstance(each["$"], int) else mapped(each["$"])
        return mapped(each)

    def mapped(each: dict[str, Any]) -> dict[str, Any]:
        return {key: revived(inner) for key, inner in each.items()}

    for part in value["pool"]:
        pool.append(revived(part))  # noqa: PERF401 - later parts look at earlier ones
    return revived(value["document"])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$", "a", "<b>"]), inner, max_size=3)
    ),
    max_leaves=40,
)


@pytest.mark.thorough
@given(JSON)
def test_packed_data_is_the_same_when_it_is_unpacked(value: Any) -> None:
    doubled = {"one": value, "other": [value, value]}

    assert repr(doubled) == repr(unpacked(packed(doubled)))


@given(JSON)
def test_no_text_can_end_the_element_that_the_data_stands_in(value: Any) -> None:
    text = island({"runs": [value, "</script><!--", "\u2028"]})

    assert set("<>&\u2028\u2029") & set(text) == set()
    assert json.loads(text) == packed({"runs": [value, "</script><!--", "\u2028"]})


def test_equal_parts_are_written_once() -> None:
    long = ["a long part that comes twice", {"and": "again"}]
    whole = packed({"one": long, "other": long, "small": [1], "tiny": [1]})

    assert 1 == len(whole["pool"])
    assert {"one": {"$": 0}, "other": {"$": 0}, "small": [1], "tiny": [1]} == whole["document"]


def test_a_step_that_was_not_run_has_no_count_of_tokens() -> None:
    text = page(runs_of("sglang-34870-eagle-window-counted-in-tokens"))

    assert '<td class="n">-</td><td class="n">-</td><td><code></code></td><td>not-run</td>' in text


@pytest.mark.parametrize("name", JUDGED)
def test_a_page_is_one_small_file_that_carries_the_runs_as_json_prints_them(name: str) -> None:
    runs = runs_of(name)
    text = page(runs)
    data = next(s for s in Elements(text).scripts if s.startswith("{"))

    assert len(text.encode()) < LIMIT == 300_000
    told = unpacked(json.loads(data))
    drawn = [run.pop("picture") for run in told["runs"]]
    assert json.loads(json.dumps({"format": 1, "runs": [run.to_json() for run in runs]})) == told
    for picture, each in zip(drawn, runs, strict=True):
        assert each.detail is not None
        assert len(each.detail.states) == len(picture["states"])
        assert len(each.steps) == len(picture["requests"]) == len(picture["chains"])


def test_a_page_asks_for_nothing_from_anywhere(three: list[Run]) -> None:
    text = page(three)
    elements = Elements(text).found
    policy = there_is(next(a["content"] for t, a in elements if a.get("http-equiv")))

    assert policy.startswith("default-src 'none'")
    assert [] == [element for element in elements if "src" in element[1]]
    assert ["data:,"] == [a["href"] for t, a in elements if t == "link"]
    assert not re.search(r"\b(fetch|XMLHttpRequest|import|eval|innerHTML|outerHTML)\b\s*[(=]", text)
    assert [] == re.findall(r"url\((?!#p[xga]\))", text)


def test_texts_of_a_scenario_stay_texts(three: list[Run]) -> None:
    calm, hostile = Elements(page(three)), Elements(page(hostile_runs(three)))

    assert {tag for tag, _ in calm.found} == {tag for tag, _ in hostile.found}
    assert 2 == len(hostile.scripts)
    assert calm.scripts[1] == hostile.scripts[1]


def test_a_fragment_escapes_what_it_shows_and_runs_nothing(three: list[Run]) -> None:
    found = {
        tag
        for hostile_run in hostile_runs(three)
        for tag, _ in Elements(fragment(hostile_run)).found
    }

    assert found.isdisjoint({"script", "img", "b", "iframe"})
    assert "onerror=" not in str(
        [
            attrs
            for hostile_run in hostile_runs(three)
            for _, attrs in Elements(fragment(hostile_run)).found
        ]
    )


def test_what_is_too_much_is_told_less_often_and_at_last_refused(three: list[Run]) -> None:
    whole = len(page(three).encode())

    assert len(page(three, limit=whole - 1).encode()) < whole
    with pytest.raises(InputError, match="name fewer scenarios or profiles"):
        page(three, limit=whole // 3)


def long_run(steps: int) -> Run:
    lines = ["format = 1", 'name = "long"', "[model]", 'preset = "hybrid"', "[engine]"]
    lines += ['name = "llama.cpp"', 'profiles = ["b9538"]', "[spans]", "S = 60"]
    lines += [f"u{i} = 20" for i in range(10)]
    for i in range(steps):
        prompt = f"S u{i % 10} u{(i * 7 + 1) % 10}"
        lines += ["[[step]]", f'name = "s{i}"', f'prompt = "{prompt}"', "predict = 2"]
    scenario = loads("\n".join(lines).encode(), name="long")
    return run(scenario, full_profile("llama.cpp", "b9538"), arithmetic="ring", detail=True)


@pytest.mark.thorough
def test_of_a_long_run_a_page_has_the_first_steps_and_says_so() -> None:
    told = long_run(40)
    least = len(page([beginning(told, 4)]).encode())

    fitted = page_of_most([told], limit=least)

    (entry,) = unpacked(json.loads(Elements(fitted.text).scripts[0]))["runs"]
    assert len(fitted.text.encode()) <= least
    assert 1 <= len(entry["steps"]) < 40
    assert entry["cut"] == fitted.note
    assert f"the first {len(entry['steps'])} of 40 steps are on this page" in fitted.note
    lost = sum(step.reuse == "lost" for step in told.steps[len(entry["steps"]) :])
    assert f"none with a wrong answer, {lost} that lost tokens" in fitted.note


def test_of_a_step_with_thousands_of_events_a_page_has_the_first_ones_and_says_so() -> None:
    told = long_run(1)
    (step,) = told.steps
    assert step.detail is not None
    times = 3_000 // len(step.events) + 1
    detail = replace(step.detail, at=step.detail.at * times)
    endless = replace(told, steps=(replace(step, events=step.events * times, detail=detail),))

    fitted = page_of_most([endless])

    (entry,) = unpacked(json.loads(Elements(fitted.text).scripts[0]))["runs"]
    assert [200] == [len(each["events"]) for each in entry["steps"]]
    assert "the first 1 of 1 steps are on this page, of each its first 200 events" == fitted.note
    assert entry["cut"] == fitted.note


@pytest.mark.thorough
def test_what_a_page_needs_of_memory_grows_no_faster_than_its_run() -> None:
    peaks = []
    for steps in (8, 16):
        tracemalloc.start()
        page_of_most([long_run(steps)])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert peaks[1] <= 2.5 * peaks[0]


def test_thinned_runs_keep_what_each_step_left_behind(three: list[Run]) -> None:
    whole, loud, last, none, _ = thinner([run.to_json() for run in three])
    ends = [[step["detail"]["at"][-1] for step in each[0]["steps"]] for each in (whole, loud, last)]

    assert ends[0] == ends[1] == ends[2]
    assert all(last[0]["detail"]["states"][number] is not None for number in ends[2])
    assert [] == none[0]["detail"]["states"]


def test_a_prompt_that_no_page_holds_is_left_out_and_its_picture_stays(three: list[Run]) -> None:
    entries = [run.to_json() | {"picture": drawn(run)} for run in three]
    key = [7] * 50_000  # of an entry of mlx-lm
    entries[0]["steps"][0]["events"][0]["key"] = key
    *_, none, pictured = thinner(entries)

    assert key == none[0]["steps"][0]["events"][0]["key"]
    assert [] == pictured[0]["steps"][0]["events"][0]["key"]
    assert all(step["detail"]["prompt"] for step in none[0]["steps"])
    assert [[], [], []] == [step["detail"]["prompt"] for step in pictured[0]["steps"]]
    ends = [step["detail"]["at"][-1] for step in pictured[0]["steps"]]
    assert all(pictured[0]["picture"]["states"][end] is not None for end in ends)
    assert [] == pictured[0]["detail"]["states"]


def test_a_page_that_is_too_large_says_so_to_another_process_too() -> None:
    told = "the report would be larger than 300 kB: name fewer scenarios or profiles"
    error = copy.copy(TooLargeError(400_000, 300_000))  # made again as a worker's error is

    assert (told, 400_000) == (str(error), error.size)


def test_runs_without_detail_make_a_page_too() -> None:
    scenario = load(shipped_file("llama.cpp-three-requests-dense"))
    entry = run(scenario, full_profile("llama.cpp", "b9538"))

    assert "llama.cpp-three-requests-dense" in page([entry])


def test_the_command_writes_a_page_and_prints_what_it_prints_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.html"
    words = ["run", "llama.cpp-three-requests-dense", "--format", "json"]
    plain = (main(words), capsys.readouterr().out)
    written = (main([*words, "--report", str(target)]), capsys.readouterr())

    assert plain == (written[0], written[1].out)
    assert f"report:{target}" == "".join(written[1].err.split())
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_explain_writes_a_page_too_and_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--explain", "llama.cpp-three-requests-dense", "--profile", "b9538", "--report"]
    done = main([*words, str(tmp_path / "out.html")])

    assert (0, 2) == (done, main([*words, str(tmp_path / "no" / "out.html")]))
    assert "cannot be written: No such file or directory" in " ".join(
        capsys.readouterr().err.split()
    )


def test_every_script_of_the_page_is_in_it() -> None:
    folder = Path(cachesim.__file__).parent / "report" / "page"

    assert sorted(SCRIPTS) == sorted(path.name for path in folder.glob("*.js"))
    assert all(len(path.read_text().splitlines()) <= 420 for path in folder.iterdir())


def test_runs_show_themselves_in_notebooks_and_in_one_line(three: list[Run]) -> None:
    one, many = cachesim.show(three[0]), cachesim.show(three)

    assert "<llama.cpp-three-requests on llama.cpp@b9538: cached 0 0 1, WRONG>" == repr(one)
    assert 3 == many._repr_html_().count("<section") == many._repr_html_().count('class="cs-pic"')
    assert one._repr_html_() == three[0]._repr_html_()
    assert "<script" not in many._repr_html_()
    assert one.page().startswith("<!doctype html>")


def test_a_framed_page_is_shut_in(three: list[Run]) -> None:
    framed = cachesim.show(hostile_runs(three)).frame()
    ((tag, attributes),) = Elements(framed._repr_html_()).found

    assert ("iframe", "allow-scripts") == (tag, attributes["sandbox"])
    assert framed.text == attributes["srcdoc"]
    assert repr(framed).startswith("<report of ")


# A table on a terminal of any width: no number loses a digit.

ROWS = [
    ("b9538", "1,234,567", "12", "checkpoints are too far apart"),
    ("b11549", "7,654,321", "9", ""),
]


def table() -> FittingTable:
    made = FittingTable(title="two servers", title_style="")
    made.add_column("server")
    made.add_column("prefilled", justify="right")
    made.add_column("hits", justify="right")
    made.add_column("lost to", overflow="fold", min_width=SENTENCES)
    for name, *cells in ROWS:
        made.add_row(Text(name), *cells)
    return made


def test_where_its_columns_fit_it_is_a_table() -> None:
    lines = plain_text(table()).splitlines()

    assert ["server", "prefilled", "hits", "lost", "to"] == lines[1].split()
    assert ["b11549", "7,654,321", "9"] == lines[-1].split()


def test_where_they_do_not_it_is_a_list() -> None:
    assert [
        "two servers",
        "server",
        "b9538",
        "  prefilled: 1,234,567, hits: 12",
        "  lost to: checkpoints are too far apart",
        "b11549",
        "  prefilled: 7,654,321, hits: 9",
    ] == plain_text(table(), width=48).splitlines()


@pytest.mark.parametrize("width", range(20, 90, 7))
def test_at_any_width_every_number_and_word_is_whole(width: int) -> None:
    shown = plain_text(table(), width=width)

    words = {word for row in ROWS for cell in row for word in cell.split()}
    assert words <= set(re.split(r",?\s+", shown))
    assert max(map(len, shown.splitlines())) <= width
