"""The README's picture shows the current run, and fetches nothing."""

import re

import make_picture


def test_the_picture_is_in_step_with_the_program() -> None:
    kept = make_picture.PICTURE.read_text(encoding="utf-8")

    assert kept == make_picture.picture(), "python docs/make_picture.py draws it again"


def test_the_picture_fetches_nothing() -> None:
    kept = make_picture.PICTURE.read_text(encoding="utf-8")
    without = re.sub(r"<!--.*?-->|xmlns=\"[^\"]*\"", "", kept, flags=re.DOTALL)

    assert "@font-face" not in kept
    assert "http" not in without
    assert "reply 7413 is WRONG, cold run: 2361" in kept
