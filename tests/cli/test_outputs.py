"""Files that commands write: replacement, and the state after a failure."""

from pathlib import Path

import pytest

from cachesim.cli.main import main
from cachesim.cli.outputs import progress
from cachesim.files import PAGE, TABLE, Output, free_name
from cachesim.report.sweep import as_csv
from cachesim.scenario import load
from tests.fixtures import Capture, Patch

LOG = "docs/examples/hybrid.log"
RECORDED = "docs/examples/recorded.jsonl"
STALE = "llama.cpp-three-requests"
OURS = "kept, whatever happens"

NEVER_REPLACED = [
    ("why", LOG, "--scenario"),
    ("why", LOG, "--trace"),
    ("why", RECORDED, "--trace"),
    ("new", "mine", "--output"),
    ("record", "--upstream", "http://127.0.0.1:1", "--output"),
]
REPLACED = [
    ("run", STALE, "--arithmetic", "ring", "--report"),
    ("run", "--explain", STALE, "--arithmetic", "ring", "-p", "b9538", "--report"),
    ("why", LOG, "--report"),
    ("why", RECORDED, "--report"),
    ("compare", STALE, "--plot"),
    ("compare", STALE, "--report"),
    ("compare", STALE, "-p", "b9538", "-p", "b11549", "--arithmetic", "ring", "--report"),
    ("compare", "made:9", "-p", "vllm@0.33.0", "--model", "dense", "--report"),
    ("check", "-p", "mlx-lm@0.32.2", "--against", "mlx-lm@0.32.2", "--examples", "1", "--report"),
    ("list", "--report"),
    ("list", "hybrid", "--report"),
    ("list", STALE, "--report"),
    ("list", "vllm", "--flags", "--report"),
]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("words", NEVER_REPLACED + REPLACED, ids=" ".join)
def test_a_file_of_another_kind_is_refused_in_the_same_words(
    words: tuple[str, ...], tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "file"
    file.write_text(OURS)

    status = main([*words, str(file)])

    told = " ".join(capsys.readouterr().err.split())
    assert (2, OURS) == (status, file.read_text())
    assert f"name another with {words[-1]}" in told
    assert "cannot be written" not in told
    assert ["file"] == names_in(tmp_path)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("words", REPLACED, ids=" ".join)
def test_a_page_replaces_an_earlier_page(words: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "file"
    main([*words, str(file)])
    written = file.read_text()
    file.write_text(written[:20])

    main([*words, str(file)])

    assert written == file.read_text()


@pytest.mark.thorough
@pytest.mark.parametrize(("source", "words"), [(LOG, "a server's log"), (RECORDED, "recorded")])
def test_the_scenario_of_a_log_and_of_a_recording_shows_the_worst_miss(
    source: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "worst.toml"

    assert 0 == main(["why", source, "--scenario", str(file)])
    assert words in load(str(file)).about
    assert 0 == main(["run", str(file), "--arithmetic", "ring"])


def test_what_cannot_be_a_scenario_is_refused_with_the_reason(
    tmp_path: Path, capsys: Capture
) -> None:
    file, recorded = tmp_path / "worst.toml", tmp_path / "recorded.jsonl"
    recorded.write_text('{"prompt": "Once upon a time", "usage": {"prompt_tokens": 9}}\n')

    assert 2 == main(["why", str(recorded), "--scenario", str(file)])
    assert "add its release, as in --profile b9538" in " ".join(capsys.readouterr().err.split())
    assert not file.exists()


def test_a_run_that_fails_leaves_no_file_and_the_page_that_was_there(tmp_path: Path) -> None:
    new, old = tmp_path / "new.html", tmp_path / "old.html"
    old.write_text("<!doctype html>old")

    assert 2 == main(["run", "no-such-scenario", "--report", str(new)])
    assert 2 == main(["run", "no-such-scenario", "--report", str(old)])

    assert "<!doctype html>old" == old.read_text()
    assert ["old.html"] == names_in(tmp_path)


def test_a_page_that_fails_halfway_leaves_the_one_that_was_there(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("<!doctype html>old")
    output = Output.at(file, "--report", PAGE)

    def broken(path: Path) -> None:
        path.write_text("<!doc")
        raise OSError(28, "No space left on device")

    with pytest.raises(ValueError, match=r"--report .*: cannot be written: No space left"):
        output.fill(broken)
    assert "<!doctype html>old" == file.read_text()
    assert ["page.html"] == names_in(tmp_path)


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "worst.toml"
    output = Output.at(file, "--scenario")
    file.write_text(OURS)

    with pytest.raises(ValueError, match="the file exists; name another with --scenario"):
        output.write("name = 'other'")
    assert OURS == file.read_text()


def test_a_device_is_written_to_directly() -> None:
    assert 0 == main(["new", "mine", "-o", "/dev/null"])


def test_a_written_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    Output.at(tmp_path / "page.html", "--report", PAGE).write("<!doctype html>")

    modes = {path.name: path.stat().st_mode for path in tmp_path.iterdir()}
    assert modes["plain"] == modes["page.html"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<!doctype html>old")
    (tmp_path / "link").symlink_to("page.html")
    Output.at(tmp_path / "link", "--report", PAGE).write("<!doctype html>new")

    assert "<!doctype html>new" == (tmp_path / "page.html").read_text()


def test_a_table_begins_as_its_kind_says() -> None:
    assert as_csv([{"trace": "made:20", "profile": "bound"}]).encode().startswith(TABLE)


def test_a_finding_gets_a_name_that_no_file_has(tmp_path: Path) -> None:
    (tmp_path / "found.toml").touch()
    (tmp_path / "found-2.toml").touch()

    assert tmp_path / "found-3.toml" == free_name(tmp_path / "found.toml")


def test_a_log_that_is_followed_writes_no_file(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "page.html"

    assert 2 == main(["why", LOG, "--follow", "--report", str(file)])
    assert "--report cannot be used with --follow" in " ".join(capsys.readouterr().err.split())
    assert not file.exists()


def test_long_work_prints_lines_where_no_terminal_is(capsys: Capture, monkeypatch: Patch) -> None:
    now = iter((0.0, 29.0, 31.0, 31.0, 40.0, 62.0, 62.0))
    monkeypatch.setattr("cachesim.cli.outputs.monotonic", lambda: next(now))

    with progress("replaying", 9, "lines") as move:
        for done in range(1, 5):
            move(done)

    assert "replaying: 2 of 9 lines\nreplaying: 4 of 9 lines\n" == capsys.readouterr().err


def test_replays_on_other_servers_show_their_progress(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr("cachesim.cli.outputs.INTERVAL", 0.0)

    assert 0 == main(["why", LOG, "--worst", "0", "--what-if", "b11549", "--what-if", "b9093"])
    assert "replaying on others: 1 of 3 servers\n" in capsys.readouterr().err
