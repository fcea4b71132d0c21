"""A page shows the same parts as a terminal: headings, sentences, tables, pictures."""

from rich.console import Group
from rich.text import Text

from cachesim.report.consoles import plain_text
from cachesim.report.document import Bar, FittingTable, Heading, PageOnly, Picture
from cachesim.report.html_document import page


def body(*parts: object) -> str:
    shown = page("t", *parts).partition("<main>")[2]  # type: ignore[arg-type]
    return shown.partition("</main>")[0].removeprefix("<h1>t</h1>\n")


def test_a_sentence_keeps_its_style_its_code_and_no_markup() -> None:
    text = Text("raise `--parallel` <b>", style="wrong").append(" a flag", style="quiet")

    assert (
        "<p class='wrong'>raise <code><span class=\"flag\">--parallel</span></code> &lt;b&gt;"
        "<span class='quiet'> a flag</span></p>"
    ) == body(Text(), text)


def test_a_table_has_its_heads_numbers_and_rows() -> None:
    table = FittingTable()
    table.add_column("server", overflow="fold")
    table.add_column("tokens", justify="right")
    table.add_column("")
    table.add_row("[0..4]", "1,900", Bar(0.5, 10), style="differs")

    shown = body(Group(table))

    assert "<th>server</th><th class='n'>tokens</th><td></td>" in shown
    assert (
        "<tr class='differs'><td data-head='server'>[0..4]</td>"
        "<td class='n' data-head='tokens'>1,900</td>"
        "<td><div class='bar'><i style='width:50%'></i></div></td></tr>"
    ) in shown
    assert "█" * 5 in plain_text(Bar(0.5, 10))


def test_what_only_a_page_has_is_not_printed() -> None:
    parts = (Heading("Title"), PageOnly((Text("all requests"),)), Picture(Text("..:"), "<svg/>"))

    assert "<h1>Title</h1>\n<p>all requests</p>\n<svg/>" == body(*parts)
    assert "Title\n..:\n" == plain_text(*parts)


def test_no_line_ends_inside_a_flag() -> None:
    shown = body(Text("lower `--checkpoint-min-step`, not-a-flag"))

    assert '<code><span class="flag">--checkpoint-min-step</span></code>, not-a-flag' in shown
    assert ".flag { white-space: nowrap; }" in page("t")


def test_a_page_has_a_main_part_and_one_first_heading() -> None:
    assert "<body><main><h1>t</h1>\n<p>a</p></main></body>" in page("t", Text("a"))
    assert "<body><main><h1>Own</h1>\n<p>a</p></main></body>" in page(
        "t", Heading("Own"), Text("a")
    )
