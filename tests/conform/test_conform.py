"""`cachesim conform`: a sound server keeps every law, and each planted defect breaks its own."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from cachesim.cli.main import main
from cachesim.conform.formats import junit, sarif
from cachesim.conform.laws import LAWS, Verdict
from cachesim.conform.result import Examined, Table
from cachesim.conform.workloads import cases
from cachesim.probe.outcome import Finding
from tests.fixtures import Capture, Patch, complaint
from tests.probe import fakes
from tests.probe.fakes import bugs, fake

SERVER = f"{sys.executable} -m tests.probe.fakes llama llama.cpp@b11549 {{port}}"
NAMED = ["--profile", "llama.cpp@b11549", "--model", "dense"]
VLLM = ["--profile", "vllm@0.32.0", "--model", "dense"]


def conformed(capsys: Capture, folder: Path, words: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """The status, and the verdicts of the only model by law."""
    status = main(["conform", *words, "--emit", str(folder), "--format", "json"])
    [model] = json.loads(capsys.readouterr().out)["models"]
    return status, {verdict["law"]: verdict for verdict in model["verdicts"]}


def statuses(verdicts: dict[str, Any]) -> dict[str, str]:
    return {law: verdict["status"] for law, verdict in verdicts.items()}


@pytest.mark.thorough
def test_a_sound_server_that_is_started_keeps_every_law_that_applies(
    capsys: Capture, tmp_path: Path
) -> None:
    words = ["--start", SERVER, *NAMED, "--requests", "700", "--longest", "60"]
    status, verdicts = conformed(capsys, tmp_path, words)

    assert 0 == status
    assert {"count", "lost-reuse", "answer", "isolation", "liveness"} <= {
        law for law, one in verdicts.items() if one["status"] == "holds" and one["requests"] > 8
    }
    assert "violated" not in statuses(verdicts).values()


@pytest.mark.thorough
def test_what_may_be_reused_is_not_judged_without_release_and_model(
    capsys: Capture, tmp_path: Path
) -> None:
    with fake("vllm", "vllm@0.32.0") as server:
        words = ["--url", server.url, "--requests", "900", "--longest", "60"]
        status, verdicts = conformed(capsys, tmp_path, words)

    assert 0 == status
    assert "not run" == verdicts["lost-reuse"]["status"]
    assert "--profile" in verdicts["lost-reuse"]["reason"]
    assert "not applicable" == verdicts["restart"]["status"]
    assert ["holds"] * 3 == [verdicts[law]["status"] for law in ("answer", "count", "isolation")]


def test_a_salt_that_a_server_forgets_is_a_violation_and_no_wrong_usage(
    capsys: Capture, tmp_path: Path, monkeypatch: Patch
) -> None:
    told = fakes.POSTS["vllm"]
    forgets = lambda server, body: told[1](server, {**body, "cache_salt": None})  # noqa: E731 - as the table has it
    monkeypatch.setitem(fakes.POSTS, "vllm", (told[0], forgets))
    with fake("vllm", "vllm@0.32.0") as server:
        words = ["--url", server.url, *VLLM, "--requests", "60", "--longest", "60"]
        status, verdicts = conformed(capsys, tmp_path, words)

    assert 1 == status
    assert "violated" == verdicts["isolation"]["status"]
    assert "a fresh cache_salt" in verdicts["isolation"]["violations"][0]["sentence"]
    assert "there is no uncached answer" in verdicts["answer"]["reason"]
    assert "curl" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    "bug", ["first token", pytest.param("late state", marks=pytest.mark.thorough)]
)
def test_a_stale_answer_violates_the_law_of_answers(
    bug: str, capsys: Capture, tmp_path: Path
) -> None:
    with fake("vllm", "vllm@0.32.0", context=dict(bugs())[bug]) as server:
        words = ["--url", server.url, *VLLM, "--requests", "900", "--longest", "60"]
        words += ["--law", "answer"]
        status, verdicts = conformed(capsys, tmp_path, words)

    assert (1, {"answer": "violated"}) == (status, statuses(verdicts))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("more", "law"), [(1, "count"), (-1, "lost-reuse")], ids=["too many", "too few"]
)
def test_a_count_beside_the_simulated_one_is_a_violation(
    more: int, law: str, capsys: Capture, tmp_path: Path
) -> None:
    script = tmp_path / "miscounts.py"
    script.write_text(
        "import sys\nfrom tests.probe import fakes\n"
        "reply = fakes.Model.reply\n"
        "def other(*given, **named):\n"
        "    cached, *rest = reply(*given, **named)\n"
        f"    return (max(0, cached + ({more}) * (cached > 20)), *rest)\n"
        "fakes.Model.reply = other\n"
        "fakes.serve('llama', 'llama.cpp@b11549', sys.argv[1])\n"
    )
    start = f"env PYTHONPATH={Path.cwd()} {sys.executable} {script} {{port}}"
    words = ["--start", start, *NAMED, "--requests", "600", "--law", "count", "--law", "lost-reuse"]
    status, verdicts = conformed(capsys, tmp_path, words)

    other = {"count": "lost-reuse", "lost-reuse": "count"}[law]
    assert (1, "violated", "holds") == (
        status, verdicts[law]["status"], verdicts[other]["status"]
    )  # fmt: skip
    assert [3, 3] == verdicts[law]["violations"][0]["after_restart"]
    assert len(verdicts[law]["violations"][0]["steps"]) <= 3


def test_a_server_that_empties_its_cache_is_started_once_and_tells_its_flags(
    capsys: Capture, tmp_path: Path
) -> None:
    script = tmp_path / "empties.py"
    script.write_text(
        "import sys\nfrom functools import partial\nfrom pathlib import Path\n"
        "from tests.probe import fakes\n"
        "made = fakes.handler_of\n"
        'told = \'vllm:cache_config_info{block_size="32",num_gpu_blocks="80"} 1.0\'\n'
        "def handler_of(fake):\n"
        "    class Handler(made(fake)):\n"
        "        def do_POST(self):\n"
        "            if 'reset' not in self.path:\n"
        "                return super().do_POST()\n"
        "            self.rfile.read(int(self.headers['Content-Length'] or 0))\n"
        "            fake.model.engine = fake.model.created()\n"
        "            self.say({'success': True})\n"
        "        def do_GET(self):\n"
        "            if self.path != '/metrics':\n"
        "                return super().do_GET()\n"
        "            self.send_response(200)\n"
        "            self.end_headers()\n"
        "            self.wfile.write(told.encode())\n"
        "            self.close_connection = True\n"
        "    return Handler\n"
        "options = {'block_size': 32, 'num_gpu_blocks_override': 80}\n"
        "fakes.Model = partial(fakes.Model, **options)\n"
        "fakes.handler_of = handler_of\n"
        "with Path(sys.argv[0] + '.starts').open('a') as starts:\n"
        "    starts.write('started\\n')\n"
        "fakes.serve('vllm', 'vllm@0.32.0', sys.argv[1])\n"
    )
    start = f"env PYTHONPATH={Path.cwd()} {sys.executable} {script} {{port}}"
    words = ["--start", start, *VLLM, "--requests", "150", "--law", "count"]
    status, verdicts = conformed(capsys, tmp_path, words)

    assert (0, {"count": "holds"}) == (status, statuses(verdicts))
    assert verdicts["count"]["requests"] > 80
    assert "started\n" == (tmp_path / "empties.py.starts").read_text()
    assert 2 == main(["conform", *words, "--set", "block_size=16"])
    assert "block_size is 16 here, and the server says 32" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_server_that_dies_violates_liveness(capsys: Capture, tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, sys\nfrom tests.probe import fakes\n"
        "reply = fakes.Model.reply\n"
        "def other(model, prompt, *given, **named):\n"
        "    return os._exit(3) if not prompt else reply(model, prompt, *given, **named)\n"
        "fakes.Model.reply = other\n"
        "fakes.serve('llama', 'llama.cpp@b11549', sys.argv[1])\n"
    )
    start = f"env PYTHONPATH={Path.cwd()} {sys.executable} {script} {{port}}"
    words = ["--start", start, "--requests", "900", "--law", "liveness", "--patience", "5"]
    status, verdicts = conformed(capsys, tmp_path, words)

    assert (1, "violated") == (status, verdicts["liveness"]["status"])
    assert "an empty prompt" in verdicts["liveness"]["violations"][0]["sentence"]


def test_every_format_tells_of_a_violation() -> None:
    stale = Finding(kind="answer", sentence="off by 2", requests=9, seconds=1.0, proofs=(3, 3))
    verdicts = (
        Verdict(law="answer", requests=7, findings=[stale]),
        Verdict(law="count", requests=8),
        Verdict(law="restart", why_not="it saves nothing"),
    )
    column = Examined(
        model="dense", server="a server", verdicts=verdicts, about=(), requests=20, seconds=2.0
    )
    table = Table((column,))

    [suite] = ET.fromstring(junit(table))
    assert ("3", "1", "1") == tuple(suite.attrib[name] for name in ("tests", "failures", "skipped"))
    [run] = json.loads(sarif(table))["runs"]
    assert [*LAWS] == [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert ["answer"] == [result["ruleId"] for result in run["results"]]
    assert [("answer", "violated"), ("count", "holds in 8"), ("restart", "not applicable")] == [
        *table.rows()
    ]
    told = table.as_json()["models"][0]["verdicts"]
    assert [None, None, "it saves nothing"] == [verdict["reason"] for verdict in told]
    assert any("restart not applicable: it saves nothing" in line for line in table.lines())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name an engine, as in llama.cpp, a server, as in --url"),
        (["llama.cpp", "--url", "http://127.0.0.1:1"], "not both"),
        (["--url", "http://127.0.0.1:1"], "does not accept connections"),
        (["--url", "http://127.0.0.1:1", "--law", "answers"], "there is no law 'answers'"),
        (["marconi"], "its servers are not started here"),
        (["llama.cpp@b9"], "b9"),
        (["--url", "http://127.0.0.1:1", "--model", "huge"], "there is no preset 'huge'"),
        (["--url", "http://127.0.0.1:1", "--profile", "b0"], "b0"),
    ],
)
def test_wrong_usage_of_conform_has_a_sentence(
    words: list[str], said: str, capsys: Capture
) -> None:
    assert said in complaint(capsys, ["conform", *words])


def test_fixed_requests_stay_within_the_longest_prompt_and_begin_with_their_law() -> None:
    made = list(cases(("answer", "company", "cancel"), 500, 16))

    assert {"answer", "company", "cancel"} == {name.partition("-")[0] for name, _ in made}
    assert 500 >= max(len(step.ids) for _, steps in made for step in steps)
    assert [steps for _, steps in made] == [
        steps for _, steps in cases(("answer", "company", "cancel"), 500, 16)
    ]
