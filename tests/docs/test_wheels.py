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


SAME, OTHER = True, False


@pytest.mark.parametrize(
    ("was", "is_now", "plays"),
    [
        # Other prose, expectations or profiles play the same.
        ("A prompt, twice.", "A prompt is sent twice.", SAME),
        ("lost-reuse", "stale-state", SAME),
        ("As reported.", "Scaled by ten.", SAME),
        ("slow", "slower", SAME),
        ("cached = [0]", "cached = [1]", SAME),
        ('profiles = ["b9538"]', 'profiles = ["b9538", "b11549"]', SAME),
        ("[model]", "# The model.\n[model]", SAME),
        ("[[step]]", "[chat]\ntemplate = 'chatml'\n[[step]]", SAME),
        ('name = "short"', 'name = "long"', SAME),
        # Other requests, options or weights are to be played again.
        ("[1, 2, 3]", "[1, 2, 4]", OTHER),
        ("parallel = 1", "parallel = 2", OTHER),
        ('"hybrid"', '"dense"', OTHER),
        ("[model]", "[model]\nseed = 1", OTHER),
        ("[[step]]", "[[step]]\npredict = 1", OTHER),
        ("[[step]]", "[chat]\ntemplate = 'needs-user'\n[[step]]", OTHER),
    ],
)
def test_a_row_is_good_for_as_long_as_the_same_is_played(
    was: str, is_now: str, plays: bool, tmp_path: Path
) -> None:
    assert was in FILE

    assert plays == (of(FILE, tmp_path) == of(FILE.replace(was, is_now), tmp_path))
