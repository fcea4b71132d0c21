"""Output of `why` and `tune`: the text, the page, JSON by its schema, a scenario that runs."""

import contextlib
import json
import re
from functools import cache
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, get_args

import pytest

from cachesim.cli.main import main
from cachesim.why.advise.tuning import of_log
from cachesim.why.advise.what_if import answers, flags_in_words, of_flags, swept, usual
from cachesim.why.explain.schema import HOWS, requests_schema, why_schema
from cachesim.why.explain.whole import UserSettings, read_files, replays_of
from cachesim.why.read.observed import How
from tests import fixtures
from tests.fixtures import Capture, Patch
from tests.schemas import fits, strict

ROOT = Path(__file__).parents[2]
LOG = str(ROOT / "docs" / "examples" / "hybrid.log")
RECORDED = str(ROOT / "docs" / "examples" / "recorded.jsonl")
JUNE = "0.10.000.000 I "
FORCED = (
    "W slot update_slots: id  2 | task 7 | forcing full prompt re-processing due to lack of data\n"
)


def launched(task: int, chosen: str, *, slot: int = 0, level: str = "") -> str:
    return (
        f"{level}slot get_availabl: id  {slot} | task -1 | selected slot by {chosen}\n"
        f"{level}slot launch_slot_: id  {slot} | task {task} | processing task, is_child = 0\n"
    )


def finished(task: int, *, read: int, said: int, held: int, slot: int = 0) -> str:
    return (
        f"\nslot print_timing: id  {slot} | task {task} | \n"
        f"prompt eval time =  100.00 ms / {read} tokens (1.00 ms per token)\n"
        f"       eval time =  10.00 ms / {said} tokens (1.00 ms per token)\n"
        f"slot      release: id  {slot} | task {task} | stop processing: n_tokens = {held}, "
        "truncated = 0\n"
    )


@cache
def said(*words: str) -> str:
    """The output of a command on a log that no test changes."""
    with contextlib.redirect_stdout(StringIO()) as out:
        assert main(list(words)) == 0
    return out.getvalue()


def output(capsys: Capture, *words: str) -> str:
    if words[1] in {LOG, RECORDED} and not {"--report", "--scenario"} & set(words):
        return said(*words)
    return fixtures.output(capsys, words)


@pytest.mark.parametrize("file", [LOG, RECORDED])
def test_every_key_of_the_json_is_in_its_schema(file: str) -> None:
    assert fits(json.loads(said("why", file, "--format", "json")), strict(why_schema()))


def test_every_key_of_a_recording_is_in_its_schema() -> None:
    for line in Path(RECORDED).read_text().splitlines():
        assert fits(json.loads(line), strict(requests_schema()))


@pytest.mark.thorough
def test_json_follows_its_schema(capsys: Capture) -> None:
    found = json.loads(output(capsys, "why", LOG, "--format", "json"))

    assert fits(found, why_schema())
    assert [request["number"] for request in found["requests"]] == [0, 1, 2, 3, 4]
    assert found["agreement"] == {
        "requests": 5, "comparable": 5, "agreeing": 5, "played": 5, "differing": [],
        "declining": [],
    }  # fmt: skip
    assert found["causes"][0]["tokens"] == 1900


def test_the_copies_under_docs_are_what_the_command_prints() -> None:
    for name, schema in (("why", why_schema()), ("requests", requests_schema())):
        assert json.loads((ROOT / "docs" / "schema" / f"{name}-1.json").read_text()) == schema

    assert set(HOWS) == set(get_args(How))


@pytest.mark.thorough
def test_the_scenario_of_the_worst_miss_runs_and_shows_it(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "worst.toml"
    output(capsys, "why", LOG, "--scenario", str(file))

    text = file.read_text()
    assert text.count("[[step]]") == 2  # the conversation, and the request that changed it
    assert "1 run, 1 as expected" in output(capsys, "run", str(file), "--arithmetic", "counts")
    assert "1900 → 0" in output(capsys, "run", str(file), "--arithmetic", "ring")


@pytest.mark.thorough
def test_the_page_has_every_request_and_nothing_from_elsewhere(
    capsys: Capture, tmp_path: Path
) -> None:
    file = tmp_path / "why.html"
    output(capsys, "why", LOG, "--report", str(file))

    page = file.read_text()
    assert page.count("<tr") > 5
    assert "full-reprocessing" in page
    assert "http" not in page


def test_a_setting_can_be_asked_for(capsys: Capture) -> None:
    words = ["why", LOG, "--format", "json", "--what-if", "b11549+24143"]
    found = json.loads(output(capsys, *words, "--what-if", "ctx_checkpoints=0"))

    now, patched, without = found["what_if"]
    assert now["processed"] == patched["processed"] == 6253
    assert without["options"]["ctx_checkpoints"] == 0


def test_a_setting_that_answers_wrongly_is_not_recommended_however_much_it_saves(
    capsys: Capture, tmp_path: Path
) -> None:
    # of a real server; llama-server refuses `--no-swa-full`, so it is left out
    lines = (Path(__file__).with_name("excerpts.jsonl")).read_text().splitlines()
    (case,) = (each for each in map(json.loads, lines) if "`--swa-full` keeps" in each["name"])
    log = tmp_path / "server.log"
    log.write_text(case["files"][0][1])
    tuned = json.loads(output(capsys, "why", "--tune", str(log), "--format", "json"))

    (without,) = (each for each in tuned["tried"] if each["flags"] == ["without --swa-full"])
    assert without["processed"] < tuned["own"]["processed"]
    assert {} == tuned["recommended"]["changes"]
    assert "without --swa-full more answers of the replay are wrong" in tuned["withheld"]


@pytest.mark.thorough
def test_why_and_tune_give_the_same_advice(capsys: Capture) -> None:
    why = json.loads(output(capsys, "why", LOG, "--format", "json"))
    tune = json.loads(output(capsys, "why", "--tune", LOG, "--format", "json"))

    assert {"ubatch_size": 704} == tune["recommended"]["changes"]
    assert {name: tune[name] for name in why["tuned"]} == why["tuned"]
    own, held = why["what_if"][0], ("processed", "peak_bytes", "context_bytes")
    assert [tune["own"][name] for name in held] == [own[name] for name in held]
    for shown in (output(capsys, "why", LOG), output(capsys, "why", "--tune", LOG)):
        assert "prefills 30 % fewer tokens (4,381 instead of 6,253)" in " ".join(shown.split())


def test_of_each_cause_the_flags_in_its_advice_are_shown(capsys: Capture) -> None:
    flags = ("ctx_checkpoints=128", "checkpoint_min_step=64", "ubatch_size=1024")
    asked = [word for flag in flags for word in ("--what-if", flag)]
    found = json.loads(output(capsys, "why", LOG, "--format", "json", *asked))

    now, *others = found["what_if"]
    (cause,) = found["causes"]
    fewer = {each["flag"]: each["fewer"] for each in cause["tried"]}
    assert [now["processed"] - other["processed"] for other in others] == [
        fewer["--ctx-checkpoints 128"],
        fewer["--checkpoint-min-step 64"],
        fewer["--ubatch-size 1024"],
    ]
    assert cause["tried_says"] == (
        "On these requests another value of `--ubatch-size` prefills fewer tokens; no value tried "
        "of `--ctx-checkpoints`, `--checkpoint-min-step` saves tokens."
    )
    assert cause["cure"] == "Have the client keep its history."


def test_servers_that_are_named_have_a_row_each(capsys: Capture) -> None:
    names = ("ctx_checkpoints=128", "b11549", "b10809")
    asked = [word for name in names for word in ("--what-if", name)]
    shown = output(capsys, "why", LOG, "--worst", "0", *asked)

    assert [name for name in names if f"\n{name} " in shown] == list(names)


def test_of_flags_that_were_tried_the_best_stands_first() -> None:
    found = [
        {"flag": "--a 1", "fewer": -3, "failed": 0},
        {"flag": "--b 2", "fewer": 1900, "failed": 0},
        {"flag": "--b 3", "fewer": 1800, "failed": 0},
        {"flag": "--no-c", "fewer": 0, "failed": 0},
        {"flag": "--d 4", "fewer": 5000, "failed": 2},
    ]

    assert flags_in_words(found) == (
        "On these requests another value of `--b` prefills fewer tokens; no value tried of `--a`, "
        "`--c`, `--d` saves tokens."
    )
    assert flags_in_words(found[:1]) == "On these requests no value tried of `--a` saves tokens."
    assert flags_in_words([]) == ""


def test_slots_that_are_added_bring_their_part_of_the_context(tmp_path: Path) -> None:
    log = tmp_path / "two.log"
    log.write_text("".join(
        launched(n, "LRU, t_last = 7", level=JUNE) + finished(n, read=40, said=2, held=41)
        for n in range(3)
    ))  # fmt: skip
    with log.open("rb") as file:
        replays = replays_of(read_files([("two.log", file)]), UserSettings(profile="b9538"))
    tried = swept(of_log(replays, None))

    (context,) = {run.options["ctx_size"] for run in of_log(replays, None).runs}
    shown = [flag["flag"] for flag in of_flags(tried, "slot-busy", replays[0].settings)]
    assert [f"--parallel {n} --ctx-size {n * context}" for n in (2, 4)] == shown


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_cause_without_a_flag_is_explained(form: str, capsys: Capture, tmp_path: Path) -> None:
    log, report = tmp_path / "same.log", tmp_path / "same.html"
    log.write_text(
        launched(1, "LRU, t_last = -1", level=JUNE)
        + finished(1, read=40, said=2, held=41)
        + launched(
            2, "LCP similarity, sim_best = 1.000 (> 0.100 thold), f_keep = 0.976", level=JUNE
        )
        + finished(2, read=1, said=2, held=41)
    )
    words = ["--format", form, "--report", str(report), "--profile", "b9538", "--model", "dense"]
    shown = output(capsys, "why", str(log), *words)

    assert "last-token" in shown
    assert "last-token" in report.read_text()
    if form == "json":
        (cause,) = json.loads(shown)["causes"]
        assert ("last-token", [], "") == (cause["cause"], cause["tried"], cause["tried_says"])


def test_an_assumed_request_without_a_cache_is_named(capsys: Capture, tmp_path: Path) -> None:
    log = tmp_path / "quiet.log"
    log.write_text(
        launched(1, "LRU, t_last = -1", level=JUNE)
        + finished(1, read=40, said=2, held=41)
        + launched(
            2, "LCP similarity, sim_best = 0.820 (> 0.100 thold), f_keep = 1.000", level=JUNE
        )
        + finished(2, read=50, said=2, held=51)
    )
    words = ["why", str(log), "--profile", "b11549"]

    found = json.loads(output(capsys, *words, "--format", "json"))
    assert [1] == found["agreement"]["declining"]
    assert ("dense", "assumed") == (
        found["servers"][0]["model"]["preset"],
        found["servers"][0]["model"]["how"],
    )
    assert "assumes `cache_prompt: false` of request 1, as" in output(capsys, *words)


def test_lengths_that_no_line_has_sum_to_an_unknown_number(capsys: Capture, tmp_path: Path) -> None:
    log = tmp_path / "cut.log"
    log.write_text(launched(1, "LRU, t_last = -1", level=JUNE))

    found = json.loads(output(capsys, "why", str(log), "--format", "json"))

    assert {"prompt_tokens": None, "cached": None, "processed": None} == {
        key: found["totals"][key] for key in ("prompt_tokens", "cached", "processed")
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("requests", "tokens"), [(301, 40), pytest.param(3, 3_000_000, marks=pytest.mark.nightly)]
)
def test_a_long_log_is_played_elsewhere_on_request_only(
    requests: int, tokens: int, capsys: Capture, tmp_path: Path
) -> None:
    log = tmp_path / "long.log"
    log.write_text(
        "".join(
            launched(n, "LRU, t_last = 7", level=JUNE)
            + finished(n, read=tokens, said=2, held=tokens + 1)
            for n in range(requests)
        )
    )
    words = ["why", str(log), "--profile", "b9538", "--model", "dense", "--worst", "0"]

    assert "is replayed with other settings on request" in output(capsys, *words)
    found = json.loads(output(capsys, *words, "--what-if", "cache_ram=0", "--format", "json"))
    assert ["b9538", "cache_ram=0"] == [each["name"] for each in found["what_if"]]
    assert found["tuned"] is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (FORCED, "the replay does not reproduce the log's reuse of most requests"),
        ("", "the log has the reused tokens of no request that was replayed"),
    ],
)
def test_a_replay_unlike_its_log_recommends_nothing(
    line: str, words: str, tmp_path: Path, capsys: Capture
) -> None:
    """A checkpoint that the replay has at 8,192 tokens, and the server had not."""
    log = tmp_path / "server.log"
    log.write_text(
        "I slot get_availabl: id  2 | task -1 | selected slot by LCP similarity, sim_best = 0.935 "
        "(> 0.300 thold), f_keep = 0.933\n"
        "I slot launch_slot_: id  2 | task 7 | processing task, is_child = 0\n"
        "I slot update_slots: id  2 | task 7 | Checking checkpoint with [14910, 14910] against "
        f"14115...\n{line}"
    )

    found = json.loads(output(capsys, "why", str(log), "--format", "json"))

    assert (None, []) == (found["tuned"], found["what_if"])
    assert words in found["log"]["long"]
    assert "No setting is recommended" in output(capsys, "why", "--tune", str(log))


def test_tune_recommends_what_reads_no_more(capsys: Capture) -> None:
    found = json.loads(output(capsys, "why", "--tune", LOG, "--format", "json"))

    assert found["recommended"]["processed"] <= found["own"]["processed"]
    held = [each["peak_bytes"] + each["context_bytes"] for each in found["front"]]
    assert held == sorted(held, reverse=True)
    assert found["command"].startswith("llama-server ")
    assert "recommended" in output(capsys, "why", "--tune", LOG)


def test_tune_takes_recorded_requests_from_standard_input_too(
    capsys: Capture, monkeypatch: Patch
) -> None:
    from_file = json.loads(output(capsys, "why", "--tune", RECORDED, "--format", "json"))
    with Path(RECORDED).open() as file:
        monkeypatch.setattr("sys.stdin", file)
        piped = json.loads(output(capsys, "why", "--tune", "-", "--format", "json"))

    assert piped | {"source": RECORDED} == from_file
    assert from_file["requests"] == 4
    assert from_file["own"]["processed"] == 7397
    assert from_file["assumed"] == ["a model like the preset hybrid"]


def test_tune_finds_room_for_conversations_that_take_turns_on_mlx_lm(
    capsys: Capture, tmp_path: Path
) -> None:
    file = tmp_path / "turns.jsonl"
    lines: list[dict[str, Any]] = []
    for turn in range(3):
        for who in ("an editor", "a pilot", "a cook"):
            texts = [f"You are {who}. " * 40, *["Go on."] * (2 * turn + 1)]
            roles = ("system", *("user", "assistant") * 3)
            messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
            usage = {"prompt_tokens": 300 + 10 * turn, "completion_tokens": 4}
            lines.append({"request": {"messages": messages}, "usage": usage})
    file.write_text("\n".join(map(json.dumps, lines)))
    words = ("--profile", "mlx-lm@0.32.2", "--model", "dense", "--set", "prompt_cache_size=1")
    unknown = json.loads(output(capsys, "why", "--tune", str(file), *words, "--format", "json"))
    replayed = json.loads(output(capsys, "why", str(file), *words, "--format", "json"))["requests"]
    for line, request in zip(lines, replayed, strict=True):
        cached = request["replayed"]["cached"]
        line["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
    file.write_text("\n".join(map(json.dumps, lines)))
    found = json.loads(output(capsys, "why", "--tune", str(file), *words, "--format", "json"))

    assert unknown["recommended"]["changes"] == {}
    assert unknown["withheld"].startswith("No setting is recommended")
    assert found["recommended"]["changes"] == {"prompt_cache_size": 3}
    assert found["recommended"]["processed"] < found["own"]["processed"] / 2
    assert found["command"] == "mlx_lm.server --prompt-cache-size 3"


def test_of_a_server_that_refuses_recorded_requests_the_counts_are_unknown(
    capsys: Capture, tmp_path: Path
) -> None:
    small = ("--what-if", "llama-cpp-python@0.3.36")
    recorded, short = Path(RECORDED).read_text(), tmp_path / "short.jsonl"
    short.write_text(re.sub(r'"n_ctx": ?\d+', '"n_ctx": 512', recorded))
    as_recorded = json.loads(output(capsys, "why", RECORDED, "--format", "json", *small))
    found = json.loads(output(capsys, "why", str(short), "--format", "json", *small))

    assert [""] == [row["problem"] for row in as_recorded["what_if"]]
    problem = "refuses 4 of 4 requests: Requested tokens (1790) exceed context window of 512"
    unknown = dict.fromkeys(("processed", "cached", "hits"))
    assert [{"name": small[1], "problem": problem} | unknown] == found["what_if"]


def test_recorded_requests_are_explained_from_standard_input(
    capsys: Capture, monkeypatch: Patch
) -> None:
    from_file = json.loads(output(capsys, "why", RECORDED, "--format", "json"))
    with Path(RECORDED).open() as file:
        monkeypatch.setattr("sys.stdin", file)
        piped = json.loads(output(capsys, "why", "-", "--format", "json"))

    assert piped["requests"] == from_file["requests"]
    assert piped["dump"]["sources"] == ["standard input"]


@pytest.mark.thorough
def test_tune_plays_a_scenario_with_all_that_its_steps_do(capsys: Capture) -> None:
    name = "llama.cpp-14157-same-request-again"
    (run,) = json.loads(output(capsys, "run", name, "--profile", "b9538", "--format", "json"))[
        "runs"
    ]
    found = json.loads(
        output(capsys, "why", "--tune", name, "--profile", "b9538", "--format", "json")
    )

    assert found["own"]["processed"] == sum(step["processed"] for step in run["steps"])
    assert found["requests"] == len(run["steps"])
    assert found["recommended"]["processed"] < found["own"]["processed"]
    assert {"ctx_checkpoints": 8} == found["recommended"]["changes"]
    assert not any("swa_full" in each["changes"] for each in found["tried"])  # answers wrongly


@pytest.mark.thorough
def test_a_prompt_that_takes_long_to_judge_is_not_judged_on_every_release() -> None:
    def judged(tokens: int) -> set[bool]:
        lines = launched(1, "LRU, t_last = 7") + finished(1, read=tokens, said=2, held=tokens + 1)
        read = read_files([("a.log", BytesIO(lines.encode()))])
        replays = replays_of(read, UserSettings(model="hybrid", profile="b9538"))
        rows = answers(replays, usual(replays[0].settings))
        return {row["wrong_answers"] is not None for row in rows}

    assert {True} == judged(100)
    assert {False} == judged(90_000)


@pytest.mark.thorough
def test_prefixes_that_no_line_compares_are_named_as_an_assumption(capsys: Capture) -> None:
    log = str(ROOT / "tests" / "why" / "data" / "no-prompt-cache.log")

    (assumed,) = json.loads(output(capsys, "why", log, "--format", "json"))["tuned"]["assumed"]
    assert assumed.startswith("no prefix shared with a conversation that left its slot")
    assert [assumed] == json.loads(output(capsys, "why", "--tune", log, "--format", "json"))[
        "assumed"
    ]
    for words in (["why", log], ["why", "--tune", log]):
        assert assumed in " ".join(output(capsys, *words).split())
    assert [] == json.loads(output(capsys, "why", LOG, "--format", "json"))["tuned"]["assumed"]
