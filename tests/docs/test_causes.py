"""The page of causes: each has an example, and each example shows it."""

from pathlib import Path
from typing import Final

import pytest
from pages.causes import FOLDER, example

from cachesim.engines import facts

FILES: Final = sorted(FOLDER.glob("*.toml"))

UNSEEN: Final = frozenset(
    {
        "llama.cpp-cache-better-entry",  # the better entry shares more, so nothing is lost to it
        "llama.cpp-cache-obsolete-entry",  # what is saved instead begins with the very same tokens
        "llama-cpp-python-less-loaded",  # a state that the caller loads, after the cache is gone
        "llama.cpp-slot-cleared",
        "mlx-lm-trimmed-too-little",
        "vllm-attention-missing",
        "vllm-from-host",
        "vllm-from-store",
        "vllm-load-failed",  # what is lost was gained from the store
        "vllm-state-forgiven",
    }
)
"""Causes of which no workload is known that loses tokens to them."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_shows_its_cause(file: Path) -> None:
    engine = max((e for e in facts.shipped() if file.stem.startswith(f"{e}-")), key=len)
    cause = file.stem.removeprefix(f"{engine}-")

    assert cause in {each.id for each in facts.causes_of(engine)}
    assert example(file, cause)[0].isalnum()


def test_every_cause_has_an_example_or_is_known_to_have_none() -> None:
    known = {file.stem for file in FILES}
    missing = {
        f"{engine}-{cause.id}"
        for engine in facts.shipped()
        for cause in facts.causes_of(engine)
        if f"{engine}-{cause.id}" not in known
    }
    assert missing == UNSEEN
