"""A scenario cannot steer the terminal: every output but JSON spells control characters."""

import json
import re
from pathlib import Path

import pytest

from cachesim.cli import UNTESTED
from cachesim.cli.main import main, report_error
from cachesim.errors import UntestedError
from cachesim.printable import STEERING, printable
from cachesim.prove.environment import EnvironmentUnavailableError
from cachesim.prove.playing import console, not_compared
from tests.fixtures import Capture, Patch, complaint, output

HOSTILE = """
format = 1
name = "plain"
about = "\\u001b]0;owned\\u0007\\u001b[2J\\u009b31m\\u202e hidden \\r over"
[source]
issue = "\\u001b[31mred#1"
note = "\\u001b]8;;http://x\\u0007"
[model]
preset = "dense"
[engine]
name = "llama.cpp"
profiles = ["b9538"]
[spans]
a = "\\u001b[2J text \\u0007"
[[step]]
name = "A"
prompt = "a"
predict = 1
[[step]]
name = "B"
messages = [{ role = "user", content = "\\u001b[5m blink" }]
predict = 1
"""
STEERS = re.compile("[" + "".join(map(re.escape, map(chr, STEERING))) + "]")


def test_only_line_breaks_and_tabs_are_left() -> None:
    text = "".join(map(chr, range(0x2070))) + "\ud800"

    assert None is STEERS.search(printable(text))
    assert "a\\x1b[31m\tb\n" == printable("a\x1b[31m\tb\n")


@pytest.mark.parametrize("words", ["run", "explain", "run --watch", "run --format json"])
def test_no_control_character_of_a_file_is_printed(
    words: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "plain.toml"
    file.write_text(HOSTILE)
    command, *options = words.split()

    assert main([command, str(file), *options, "--arithmetic", "ring"]) == 0

    printed = capsys.readouterr()
    assert None is STEERS.search(printed.out + printed.err)


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE.replace('name = "plain"', 'name = "\\u001b[2J"'),
        HOSTILE.replace('preset = "dense"', 'preset = "dense"\n"\\u001b[2J" = 1'),
        HOSTILE.replace('"llama.cpp"', '"\\u001b[2J"'),
        HOSTILE.replace("b9538", "\\u001b[2J"),
        HOSTILE.replace('prompt = "a"', 'prompt = "\\u001b[2J"'),
    ],
)
def test_nor_in_an_error(text: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "\x1b]0;file\x07.toml"
    file.write_text(text)

    assert main(["run", str(file)]) == 2
    assert main(["run", "\x1b[2J"]) == 2
    assert main(["\x1b[2J"]) == 2
    assert None is STEERS.search(complaint(capsys, ["list", "\x1b[2J"]))


def test_nor_where_real_engines_are_spoken_of(capsys: Capture) -> None:
    console().print("pip said \x1b[2J", "[red]", ":smile:")
    with pytest.raises(UntestedError) as missing:
        not_compared(EnvironmentUnavailableError("pip said \x1b]0;owned"))
    assert UNTESTED == report_error(missing.value)

    printed = capsys.readouterr()
    assert "pip said \\x1b[2J [red] :smile:\n" == printed.out
    assert "cachesim: NOT COMPARED: pip said \\x1b]0;owned\n" == printed.err


def test_colour_is_still_there(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = tmp_path / "plain.toml"
    file.write_text(HOSTILE)

    assert main(["run", str(file), "--arithmetic", "ring"]) == 0

    styles = re.findall(r"\x1b(\S*?[a-zA-Z])", capsys.readouterr().out)
    assert styles
    assert all(re.fullmatch(r"\[[\d;]*m", style) for style in styles)


def test_json_holds_the_text_itself(capsys: Capture) -> None:
    entries = json.loads(output(capsys, ["list", "scenarios", "--format", "json"]))
    assert "llama.cpp-three-requests" in [entry["name"] for entry in entries]
