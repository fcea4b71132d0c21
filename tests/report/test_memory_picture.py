"""The picture of memory: who wrote what, what is wrong, what is missing, and from whom it came."""

import re
import tomllib
from dataclasses import replace
from xml.parsers import expat

import pytest

from cachesim import run_scenario
from cachesim.learn.drawing import drawn
from cachesim.learn.kit import serve
from cachesim.play.result import Run
from cachesim.play.states import size_of
from cachesim.report.picture import Picture, Row, after, clip, held, moment, short, story
from cachesim.report.picture_text import legend, rows
from cachesim.report.story import memory_facts
from cachesim.report.svg import body, inline, row_svg, standalone
from cachesim.report.texts import Bar
from cachesim.scenario.shipped import shipped_file
from cachesim.typed import there_is
from tests.report.hostile import hostile_runs

THREE = "llama.cpp-three-requests"
TREES = (
    ("sglang-24221-state-one-chunk-later", "sglang@0.5.9"),
    ("sglang-31486-window-slots-gone", "sglang@0.5.9"),
    ("sglang-29204-window-not-written-back", "sglang@0.5.23"),
    ("mlx-lm-1006-shared-system-prompt", "mlx-lm@0.31.1-main"),
)

CONSUMED = "llama.cpp-24143-load-consumes-entry"


def watched(name: str, profile: str) -> Run:
    mapping = tomllib.loads(shipped_file(name).read_text(encoding="utf-8"))
    return run_scenario(mapping, profile=profile, detail=True)


def parsed(text: str) -> None:
    """Raises where it is not XML."""
    expat.ParserCreate().Parse(text, True)


def row_of(picture: Picture, kind: str) -> Row:
    return next(row for row in picture.rows if row.kind == kind)


def seen(row: Row) -> list[tuple[int, int, int | None, str]]:
    return [(bar.start, bar.end, bar.step, bar.kind) for bar in row.bars]


def test_a_state_restored_from_another_conversation_is_outlined_from_its_first_token_on() -> None:
    picture = there_is(after(watched(THREE, "llama.cpp@b11549"), 2))

    assert [(0, 1, 0, "wrong"), (1, 47, 2, "wrong")] == seen(row_of(picture, "recurrent"))
    assert [(0, 1, 1, "held"), (1, 47, 2, "new")] == seen(row_of(picture, "attention"))
    assert [(0, 1, 2, "wrong"), (1, 40, 2, "new")] == seen(row_of(picture, "request"))


def test_with_the_fix_nothing_is_outlined_and_no_arrow_is_drawn() -> None:
    picture = story(watched(THREE, "llama.cpp@b11549+erase-equal"))

    assert () == picture.arrows
    assert "wrong" not in {bar.kind for row in picture.rows for bar in row.bars}


def test_an_arrow_runs_from_the_maker_of_a_checkpoint_to_the_one_that_restored_it() -> None:
    picture = story(watched(THREE, "llama.cpp@b11549"))
    (arrow,) = picture.arrows

    assert "checkpoint 1[0..0], made by A" == picture.rows[arrow.from_row].label
    assert "recurrent" == picture.rows[arrow.to_row].kind
    assert "restored from 1[0..0] of A" == picture.rows[arrow.to_row].note
    assert arrow.wrong


def test_no_arrow_leads_to_a_slot_that_was_reset_after_it_restored_a_checkpoint() -> None:
    reset, kept = (
        story(
            watched(
                "ik_llama.cpp-1889-refused-trim-empties-both-contexts",
                f"ik_llama.cpp@d2da6da05{patch}",
            )
        )
        for patch in ("", "+1889")
    )

    assert () == reset.arrows
    assert ["restored from 395[394..394] of A"] == [arrow.label for arrow in kept.arrows]


def test_a_model_that_recalls_facts_is_drawn_in_words_and_its_long_request_is_clipped() -> None:
    picture = story(watched("llama.cpp-two-codes", "llama.cpp@b11549"))
    (arrow,) = (each for each in picture.arrows if each.wrong)
    (long,) = (row for row in picture.rows if row.label.startswith("request b-reads"))

    assert 12 == picture.positions
    assert "b-asks: reply 7413 is WRONG, uncached run: 2361" in [
        heading for _, heading in picture.headings
    ]
    assert ["please note the code of alice", "7413", ". alice ?"] == [
        " ".join(bar.words) for bar in picture.rows[arrow.to_row].bars
    ]
    assert "request b-reads: rules code-b document, 12 of 608 tokens" == clip(long, 12).label
    assert 12 == clip(long, 12).bars[-1].end
    assert ">short<" in body(picture, "")


def test_a_short_view_has_the_memory_of_a_request_and_the_checkpoint_it_resumed_from() -> None:
    run = watched("llama.cpp-two-codes", "llama.cpp@b11549")
    drawn = [held(run, state) for state in there_is(run.detail).states]
    at = there_is(run.steps[3].detail).at[run.steps[3].finding.event]

    chosen = [drawn[at][row].label for row in short(run, 3, drawn)[at]]

    assert ["recurrent state at 6", "checkpoint 7[6..6], made by a-asks"] == chosen
    assert len(drawn[at]) > len(chosen)
    assert {} == short(run, 0, drawn), "it resumed from nothing: every row is shown"


def nodes_of(picture: Picture) -> list[tuple[str, int, int, str]]:
    """The nodes: label, where they begin, where they end, what stands there."""
    return [
        (row.label.partition(":")[0], row.branch.start, row.branch.end, row.branch.mark)
        for row in picture.rows
        if row.branch is not None and not row.branch.root
    ]


@pytest.mark.thorough
def test_a_trie_is_drawn_with_what_prompts_share_as_the_parent_of_their_ends() -> None:
    run = watched("mlx-lm-1006-shared-system-prompt", "mlx-lm@0.31.1-main")
    picture = there_is(after(run, 1))

    assert nodes_of(picture) == [
        ("node 1, under the root", 0, 408, ""),
        ("node 2, under 1", 408, 416, "saved"),
        ("node 3, under 2", 416, 420, "saved"),
        ("node 4, under 1", 408, 416, "saved"),
        ("node 5, under 4", 416, 420, "saved"),
    ]
    assert [0, 0, 0, 1, 1] == [
        row.bars[0].step for row in picture.rows if row.branch is not None and row.bars
    ]


@pytest.mark.thorough
def test_every_node_begins_where_its_parent_ends_in_every_tree() -> None:
    for name, profile in TREES:
        run = watched(name, profile)
        assert run.detail is not None
        trees = [state.tree for state in run.detail.states if state.tree is not None]
        assert any(node.parent for tree in trees for node in tree.nodes), name
        for tree in trees:
            ends = {0: 0} | {
                node.number: node.start + sum(map(size_of, node.tokens)) for node in tree.nodes
            }
            assert all(ends[node.parent] == node.start for node in tree.nodes), name


def test_a_state_that_has_folded_in_too_much_is_crossed_out_on_its_node() -> None:
    picture = there_is(
        after(watched("sglang-24221-state-one-chunk-later", "sglang@0.5.9+24221"), 0)
    )

    assert nodes_of(picture)[0] == ("node 1, under the root", 0, 64, "wrong")
    folded = next(row for row in picture.rows if row.label == "its state has processed")
    assert [(0, 64, 0, "new"), (64, 124, 0, "wrong")] == seen(folded)


def test_what_is_evicted_and_stays_as_a_node_is_hatched_and_says_so() -> None:
    picture = story(watched("sglang-33713-state-not-on-the-host", "sglang@0.5.23"))
    gone = [row for row in picture.rows if {bar.kind for bar in row.bars} == {"gone"}]

    assert gone
    assert all("on the host only" in row.label for row in gone)
    assert all("evicted" in bar.text for row in gone for bar in row.bars)
    assert 'fill="url(#xpg)"' in inline(picture, "x")


def test_a_window_is_a_strip_at_the_foot_of_its_node_and_hatched_where_it_is_gone() -> None:
    picture = story(watched("sglang-31486-window-slots-gone", "sglang@0.5.9"))
    windows = {row.branch.window for row in picture.rows if row.branch is not None and row.bars}
    text = inline(picture, "x")

    assert {True, False} == windows
    assert 'class="alive"' in text
    assert 'fill="url(#xpx)"' in text


def test_in_text_lines_join_a_node_to_its_parent() -> None:
    run = watched("sglang-24221-state-one-chunk-later", "sglang@0.5.9+24221")
    picture = there_is(after(run, 1))

    lines = rows(picture)
    assert "  └─ node 1, under the root: state after 64 tokens" in lines
    assert "     ├─ node 2, under 1: state after 124 tokens" in lines
    assert "     │  └─ node 3, under 2: state after 125 tokens" in lines
    assert "     └─ node 4, under 1: state after 94 tokens" in lines
    assert any("✗ wrong, / evicted" in line for line in legend(picture))
    assert "     ├─ node 2: state after 124 tokens; 60 tokens of long" in [
        f"  {line}" for word, fact in memory_facts(run, 1) if word == "tree"
        for line in fact.splitlines()
    ]  # fmt: skip


def test_a_window_that_lacks_a_key_shows_a_hole() -> None:
    run = watched("llama.cpp-window-loses-a-key-each-trip", "llama.cpp@b11549")
    assert run.detail is not None
    looks = {
        bar.kind
        for state in run.detail.states
        for row in moment(run, len(run.steps) - 1, state).rows
        if row.kind == "window"
        for bar in row.bars
    }

    assert "missing" in looks


def test_every_engine_is_drawn_and_every_drawing_is_xml_that_fetches_nothing() -> None:
    for name, profile in (
        (THREE, "llama.cpp@b11549"),
        ("vllm-39273-plain-step-after-drafts", "vllm@0.33.0"),
        ("sglang-24221-state-one-chunk-later", "sglang@0.5.9"),
        ("ik_llama.cpp-1079-cache-search-empties-the-slot", "ik_llama.cpp@d2da6da05"),
    ):
        picture = story(watched(name, profile))
        text = standalone(picture)

        parsed(text)
        assert re.findall(r'https?://[^"<]*', text) == ["http://www.w3.org/2000/svg"], name
        assert {"request"} < {row.kind for row in picture.rows}, name


def test_hostile_names_stay_texts() -> None:
    for run in hostile_runs([watched(THREE, "llama.cpp@b11549")]):
        parsed(inline(story(run), "a"))


def test_what_happened_is_seen_without_colour() -> None:
    """Lost is hatched, prefilled is light, wrong is framed, and each bar names its text."""
    picture = story(watched(THREE, "llama.cpp@b11549"))
    bars: list[Bar] = [bar for row in picture.rows if row.kind != "request" for bar in row.bars]
    text = inline(picture, "x") + inline(story(watched(CONSUMED, "llama.cpp@b9538")), "x")

    assert re.search(r'<rect class="b again" [^>]*fill="url\(#xpa\)"', text)
    assert {"b new", "b again", "b held", "b wrong"} <= set(re.findall(r'class="(b \w+)"', text))
    assert all(
        bar.text.startswith("ABC"[bar.step]) for bar in bars if bar.step is not None and bar.text
    )


def test_a_shared_beginning_has_one_colour_whoever_computed_it() -> None:
    picture = story(watched(THREE, "llama.cpp@b11549"))
    a, b, c = (row for row in picture.rows if row.kind == "request")

    assert (((5, 0),), ((20, 1), (20, 2))) == (a.bars[0].colours, b.bars[0].colours)
    assert [((1, 1),), ((19, 1), (20, 3))] == [bar.colours for bar in c.bars]


def test_letters_that_two_prompts_begin_with_have_one_colour() -> None:
    """Parts without names are compared token by token."""
    first, _ = serve("llama.cpp@b11549", "dense", "abcdefgh", "abcxyz", reply="")
    rows_of = [row for row in story(first.watched()).rows if row.kind == "request"]

    assert [[(8, 0)], [(3, 0), (3, 1)]] == [
        [colour for bar in row.bars for colour in bar.colours] for row in rows_of
    ]


def test_a_legend_explains_the_fills_that_occur_and_no_others() -> None:
    wrong = inline(story(watched(THREE, "llama.cpp@b11549")), "x")
    right = inline(story(watched(THREE, "llama.cpp@b11549+erase-equal")), "x")
    lost = inline(story(watched(CONSUMED, "llama.cpp@b9538")), "x")
    words = ("cached, or still held", ">prefilled<", "lost, and prefilled again", ">wrong<")

    assert [True, True, False, True] == [word in wrong for word in words]
    assert [True, True, True, False] == [word in right for word in words]
    assert [True, True, True, False] == [word in lost for word in words]
    assert "evicted" not in wrong + right


def test_the_words_beside_a_picture_say_what_it_shows() -> None:
    about = story(watched(THREE, "llama.cpp@b11549")).about

    assert "A: hello, wrong at 0" in about
    assert "C: 40 tokens, 1 cached, answer WRONG" in about


def test_lessons_draw_a_trie_and_its_marks_are_no_letters() -> None:
    """A kind of row that lessons do not ask for would be left out of their pictures."""
    picture = drawn(serve("mlx-lm@0.32.2", "hybrid", "the cat sat", "the cat ran"))

    assert "tree" in {row.kind for row in picture.picture.rows}
    assert "    the_cat_sa●" in picture.text().splitlines()


def test_a_text_that_does_not_fit_its_bar_stands_after_it_or_is_shortened_for_phones() -> None:
    bars = (
        Bar(start=0, end=2, step=0, kind="held", text="A: hello", tip=""),
        Bar(start=20, end=30, step=1, kind="held", text="20 reused", tip=""),
        Bar(start=30, end=60, step=2, kind="held", text="new", tip=""),
    )
    drawn_row = row_svg(Row(kind="slot", label="", bars=bars), 100, "")

    assert 'class="in" x="100%" dx="4" y="12">A: hello<' in drawn_row
    assert 'class="onphone" x="4" y="12">20<' in drawn_row
    assert 'class="onwide" x="4" y="12">20 reused<' in drawn_row
    assert '<text x="4" y="12">new<' in drawn_row


def test_words_too_long_for_their_tokens_on_a_phone_stand_in_a_line() -> None:
    words, colours = ("please", "note", "of", "7413", "."), ((3, 0), (2, 1))
    bar = Bar(start=0, end=5, step=0, kind="held", text="", tip="", words=words, colours=colours)
    drawn_row = row_svg(Row(kind="slot", label="", bars=(bar,)), 11, "")

    assert '<text class="m onphone" x="30%" y="12">please note of<' in drawn_row
    assert '<text class="m onwide" x="10%" y="12">please<' in drawn_row
    assert '<text class="m" x="70%" y="12">7413<' in drawn_row


@pytest.mark.thorough
def test_the_mark_at_the_end_of_a_node_covers_none_of_its_letters() -> None:
    for name, profile in TREES:
        run = watched(name, profile)
        for index in range(len(run.steps)):
            picture = after(run, index)
            for row in () if picture is None else picture.rows:
                if row.branch is not None and row.branch.mark and picture is not None:
                    assert "translate(8)" in row_svg(row, picture.positions, ""), (name, index)


@pytest.mark.thorough
def test_cached_blocks_are_drawn_as_chains_of_hashes_that_fork_where_prompts_do() -> None:
    picture = story(watched("vllm-45238-unique-tail", "vllm@0.19.1"))
    chains = [(row.branch.stem, row.label) for row in picture.rows[-17:-4] if row.branch]
    forked = next(row for row in picture.rows if row.label == "#2 → #3, under #1")

    assert ("", "attention: 16 cached blocks of 528 tokens, by hash") == chains[0]
    assert ["#0", "#1, under #0"] == [label for _, label in chains[1:3]]
    assert [f"#{at} → #{at + 1}, under #1" for at in (2, 4, 6, 8)] == [
        label for _, label in chains[3:7]
    ]
    assert 3 == sum(label == "#0, the same hash again" for _, label in chains)
    assert [(1056, 1584, "#2 block 4"), (1584, 2112, "#3 block 5")] == [
        (bar.start, bar.end, bar.text) for bar in forked.bars
    ]


def test_a_chain_without_its_beginning_names_the_hash_that_is_missing() -> None:
    picture = story(watched("vllm-48435-window-blocks-evicted-first", "vllm@0.33.0"))
    cut = [row for row in picture.rows if "not cached" in row.label]

    assert "#4 → #5 → #6, parent #3 not cached" == cut[0].label
    assert all(row.kind == "window" for row in cut)


def test_a_block_of_tokens_that_were_not_watched_is_drawn() -> None:
    rows = story(watched("vllm-55600-state-of-another-entry", "vllm@0.30.0")).rows

    assert any(row.branch is not None and row.branch.stem for row in rows)


def test_a_run_without_a_step_to_draw_has_an_empty_story() -> None:
    assert () == story(replace(watched(THREE, "llama.cpp@b11549"), detail=None)).rows
