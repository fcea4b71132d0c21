"""The first screen of the site: what its slider and its tick show is what the simulator does."""

import json
import re
from typing import Any

import pytest
from pages import home
from two_codes import LENGTHS, told

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def page() -> str:
    return home.page()


@pytest.fixture(scope="module")
def data(page: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(re.findall(r"<script[^>]*>(.*)</script>", page)[0])
    return found


def test_b_is_told_its_own_code_up_to_515_words_and_with_the_fix(data: dict[str, Any]) -> None:
    released, fixed = (
        {length: reply == right for length, (reply, right) in zip(LENGTHS, part, strict=True)}
        for part in data["replies"]
    )

    assert {length: length <= 515 for length in LENGTHS} == released
    assert set(fixed.values()) == {True}
    assert {500, 505, 510, 515, 520, 525} < set(LENGTHS)


def test_each_story_has_five_frames_of_two_rows_and_ends_with_the_answer(
    data: dict[str, Any],
) -> None:
    for stories, replies in zip(data["stories"], data["replies"], strict=True):
        for story, (reply, right) in zip(stories, replies, strict=True):
            assert [False] * 4 + [True] == [answered for _, _, answered, _ in story]
            assert all(len(rows) == 2 for *_, rows in story)
            assert ("right" if reply == right else "wrong") == story[-1][0]


def test_a_code_of_the_other_chat_is_outlined_where_the_answer_is_wrong_only(
    data: dict[str, Any],
) -> None:
    for stories, replies in zip(data["stories"], data["replies"], strict=True):
        for story, (reply, right) in zip(stories, replies, strict=True):
            drawn = [data["pool"][row] for *_, rows in story for row in rows]
            assert (reply != right) == any('class="b wrong"' in row for row in drawn)


def test_the_page_has_the_last_frame_without_its_script_and_is_small(page: str) -> None:
    shown = page.partition("<script")[0]

    assert told(600).moments[-1].sentence in page.replace("&#x27;", "'")
    assert "that is A's code, B's is 2361" in shown
    assert "\n" not in page[:-1]  # Markdown ends a block at an empty line
    assert len(page) < 80_000
