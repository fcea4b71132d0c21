"""The scheduled check opens one issue for what a newest release does otherwise, and only that."""

import os
import subprocess
from pathlib import Path

import pytest

from cachesim.typed import there_is

SCRIPT = Path(__file__).parents[2] / ".github" / "report_newest.sh"
GH = """#!/bin/sh
if [ "$2" = list ]; then echo "$OPEN"; else printf '%s\\n' "$@" > asked; fi
"""
NEW = "vllm 0.34.0 is NOT as 0.33.0"
FOUND = f"""  workloads   requests   agreeing
  drawn            100         98
{NEW}
rules       now   share
block_tail  keep  2 of 2 requests
"""


def asked(folder: Path, found: str, already: str = "") -> list[str] | None:
    """The arguments of `gh issue create`, if it is called."""
    program = folder / "gh"
    program.write_text(GH)
    program.chmod(0o755)
    (folder / "found.txt").write_text(found)
    variables = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "OPEN": already}
    command = ["bash", str(SCRIPT), "vllm", "found.txt"]
    subprocess.run(command, cwd=folder, env=variables, check=True, capture_output=True)
    created = folder / "asked"
    return created.read_text().splitlines() if created.exists() else None


def test_the_issue_has_the_difference_and_its_fitted_rules_without_the_tables(
    tmp_path: Path,
) -> None:
    assert ["issue", "create", "--title", NEW, "--body-file", "body.md"] == asked(tmp_path, FOUND)
    body = (tmp_path / "body.md").read_text()
    assert body.startswith(f"```text\n{NEW}\nrules ")
    assert "block_tail" in body
    assert "agreeing" not in body
    assert body.endswith("Seen by `make newest-vllm`.\n")


@pytest.mark.parametrize(("already", "opened"), [(NEW, False), (f"{NEW}.1", True)])
def test_there_is_one_open_issue_of_a_title(already: str, opened: bool, tmp_path: Path) -> None:
    assert opened == (asked(tmp_path, FOUND, already) is not None)


def test_a_check_that_failed_otherwise_is_reported_whole(tmp_path: Path) -> None:
    created = there_is(asked(tmp_path, "the registry cannot be reached\n"))
    assert "vllm: the newest release could not be compared, or differs" in created
    assert "the registry cannot be reached" in (tmp_path / "body.md").read_text()


def test_a_report_that_is_too_long_is_cut_and_opened(tmp_path: Path) -> None:
    assert asked(tmp_path, f"{NEW}\n" + 30_000 * "a b c\n") is not None
    assert 60_000 < (tmp_path / "body.md").stat().st_size < 61_000
