"""The table of scenarios on the real servers: a row is good for as long as the same is played."""

from pathlib import Path

import pytest

from cachesim.scenario import load
from cachesim.scenario.labels import digest

FILE = """
format = 1
name = "short"
about = "A prompt, twice."
class = "lost-reuse"
source = { note = "As reported." }
shows = { symptom = "slow" }

[model]
preset = "hybrid"

[engine]
name = "llama.cpp"
profiles = ["b9538"]
options = { parallel = 1 }

[[step]]
prompt = [1, 2, 3]

[[expect]]
cached = [0]
"""


def of(text: str, folder: Path) -> str:
    file = folder / "short.toml"
    file.write_text(text, encoding="utf-8")
    return digest(load(file))


@pytest.mark.parametrize(
    ("was", "is_now"),
    [
        ("A prompt, twice.", "A prompt is sent twice."),
        ("lost-reuse", "stale-state"),
        ("As reported.", "Scaled by ten."),
        ("slow", "slower"),
        ("cached = [0]", "cached = [1]"),
        ('profiles = ["b9538"]', 'profiles = ["b9538", "b11549"]'),
        ("[model]", "# The model.\n[model]"),
        ("[[step]]", "[chat]\ntemplate = 'chatml'\n[[step]]"),
        ('name = "short"', 'name = "long"'),
    ],
)
def test_other_prose_expectations_or_profiles_play_the_same(
    was: str, is_now: str, tmp_path: Path
) -> None:
    assert was in FILE

    assert of(FILE, tmp_path) == of(FILE.replace(was, is_now), tmp_path)


@pytest.mark.parametrize(
    ("was", "is_now"),
    [
        ("[1, 2, 3]", "[1, 2, 4]"),
        ("parallel = 1", "parallel = 2"),
        ('"hybrid"', '"dense"'),
        ("[model]", "[model]\nseed = 1"),
        ("[[step]]", "[[step]]\npredict = 1"),
        ("[[step]]", "[chat]\ntemplate = 'needs-user'\n[[step]]"),
    ],
)
def test_other_requests_options_or_weights_are_to_be_played_again(
    was: str, is_now: str, tmp_path: Path
) -> None:
    assert was in FILE

    assert of(FILE, tmp_path) != of(FILE.replace(was, is_now), tmp_path)
