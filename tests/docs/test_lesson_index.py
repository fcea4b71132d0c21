"""The index of the lessons: a picture and a link for each of them."""

import re

import pytest
from pages import lessons

from cachesim.learn import lessons as all_lessons

pytestmark = pytest.mark.thorough


def test_the_index_has_a_picture_and_a_link_for_each_lesson() -> None:
    cards = lessons.index().split('<div class="card">')[1:]

    assert len(all_lessons()) == len(cards)
    for lesson, card in zip(all_lessons(), cards, strict=True):
        assert f'href="_generated/lessons/{lesson.file.removesuffix(".md")}.html"' in card
        told = re.findall(r'aria-label="([^"]*)"', card)[0].split(". ")
        assert 2 <= len(told) == card.count('<svg class="r"') <= lessons.ROWS
        assert all(re.fullmatch(r"request .*: .*(cached|prefilled).*", each) for each in told)


def test_each_lesson_opens_with_a_picture() -> None:
    for name, write in lessons.pages().items():
        page = write()
        first = min(page.index(each) for each in ("<figure", "<form") if each in page)
        assert page[first:].startswith("<figure"), name
