"""The overview: names whole, patches whole, and words that do not contradict each other."""

from pathlib import Path

import pytest

from cachesim.cli.main import main
from cachesim.report.tables import broken

SCENARIO = """
format = 1
name = "{name}"
model = {{ preset = "dense" }}
engine = {{ name = "llama.cpp", profiles = ["b9538+24143+24035-lcp+erase-equal+25592"] }}
spans = {{ S = 20 }}
step = [{{ prompt = "S", predict = 1 }}]
"""


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_long_names_and_profiles_are_shown_whole(
    columns: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    names = ["a" * 58, "b-" * 20 + "b"]
    for name in names:
        (tmp_path / f"{name}.toml").write_text(SCENARIO.format(name=name))

    assert main(["run", str(tmp_path), "--arithmetic", "ring"]) == 0

    out = capsys.readouterr().out
    words = out.replace("+", " +").split()
    assert set(names) <= set(words)
    assert {"+24143", "+24035-lcp", "+erase-equal", "+25592"} <= set(words)


def test_an_expected_wrong_answer_is_not_called_ok(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["llama.cpp-three-requests", "llama.cpp-three-requests-dense"]

    assert main(["run", *names, "--arithmetic", "ring"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert ["profile", "cached,", "step", "by", "step", "answer", "expected"] == lines[0].split()
    assert ["DIVERGED", "yes"] == lines[2].split()[-2:]


def test_a_profile_is_broken_between_its_patches() -> None:
    profile = "llama.cpp@b11549+erase-equal+24143"

    assert "llama.cpp@b11549\n+erase-equal+24143" == broken(profile, 18)
    assert "b11549+24143" == broken("b11549+24143", 18)
