"""llama-cpp-python's lines with `verbose=True`, recorded from the real 0.3.36."""

import re
from io import BytesIO
from pathlib import Path
from typing import Any

from cachesim.cli.main import main
from cachesim.why.explain.whole import UserSettings, read_files, replays_of, why
from cachesim.why.read.python_calls import SMALL, WINDOW
from tests.fixtures import Capture

RECORDED = Path(__file__).with_name("data") / "llama-cpp-python-0.3.36.log"
"""Instances on three models: dense; swa with `LlamaRAMCache`; hybrid. The same six prompts each."""

LOADED = "Model metadata: {'general.architecture': 'llama'}\n"
PERF = "llama_perf_context_print: "


def read(text: str) -> dict[str, Any]:
    log = read_files([("python.log", BytesIO(text.encode()))])
    return why(log, replays_of(log, UserSettings()))


def timed(prompt: int, runs: int) -> str:
    return (
        f"{PERF}prompt eval time = {prompt}.01 ms / {prompt:5} tokens\n"
        f"{PERF}       eval time = {runs}.01 ms / {runs:5} runs\n"
        f"{PERF}      total time = 9.01 ms / {prompt + runs:5} tokens\n"
    )


def hit(n_tokens: int, rest: int) -> str:
    return f"Llama.generate: {n_tokens} prefix-match hit, remaining {rest} prompt tokens to eval\n"


def counts(found: dict[str, Any]) -> list[tuple[int | None, ...]]:
    names = ("prompt_tokens", "cached", "processed")
    return [tuple(request[name] for name in names) for request in found["requests"]]


def test_each_call_has_the_counts_of_the_real_package() -> None:
    found = read(RECORDED.read_text())
    lengths = [70, 40, 70, 90, 15, 15]
    cached = [0, 0, 0, 70, 10, 14, 0, 0, 69, 70, 10, 14, *[0] * 6]

    assert [
        (prompt, held, prompt - held) for prompt, held in zip(lengths * 3, cached, strict=True)
    ] == counts(found)
    assert [4] * 18 == [request["generated"] for request in found["requests"]]
    assert ["gemma3", "granitehybrid", "llama"] == sorted(
        line.split("'")[3] for line in RECORDED.read_text().splitlines() if "Model meta" in line
    )
    assert ["dense", "swa", "hybrid"] == [e["model"]["preset"] for e in found["servers"]]


def test_a_refused_cut_is_a_cause_with_a_remedy() -> None:
    (cause,) = read(RECORDED.read_text())["causes"]
    assert ("cut-refused", [15, 16, 17], 70 + 10 + 14) == (
        cause["cause"],
        cause["requests"],
        cause["tokens"],
    )
    assert "load_state" in cause["cure"]


def test_calls_that_replace_what_is_held_name_the_cache() -> None:
    dense, windowed = read(RECORDED.read_text())["places"]

    assert ([1, 2], 110) == (dense["requests"], dense["processed"])
    assert "LlamaRAMCache" in dense["advice"]
    assert [7] == windowed["requests"]
    assert "LlamaRAMCache" not in windowed["advice"]


def test_a_window_that_was_loaded_and_cut_early_may_answer_wrongly(capsys: Capture) -> None:
    stale = {
        request["number"]: request["stale"] for request in read(RECORDED.read_text())["requests"]
    }

    assert {10: WINDOW, 11: WINDOW} == {n: reason for n, reason in stale.items() if reason}
    assert main(["why", str(RECORDED)]) == 0
    assert "requests 10, 11: the window of a loaded state" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_small_window_that_was_cut_early_may_answer_wrongly() -> None:
    start = (
        "print_info: n_swa                 = 32\n"
        "llama_kv_cache_iswa: creating     SWA KV cache, size = 256 cells\n"
    )
    found = read(start + LOADED + timed(350, 1) + hit(100, 10) + timed(10, 1))

    assert [None, SMALL] == [request["stale"] for request in found["requests"]]


def test_a_prompt_that_is_held_is_as_long_as_what_the_call_before_left() -> None:
    held = "Llama.generate: full prompt already cached, skipping reset\n"
    one = timed(64, 0).replace("0.01 ms /     0", "0.00 ms /     1")
    found = read(LOADED + one + held + timed(0, 1).replace("0.01 ms /     0", "0.00 ms /     1"))

    assert [(64, 0, 64), (64, 64, 0)] == counts(found)


def test_a_stream_that_was_left_has_no_end() -> None:
    found = read(LOADED + timed(33, 3) + hit(33, 2) + hit(15, 16) + timed(16, 11))

    assert [(33, 0, 33), (35, 33, 2), (31, 15, 16)] == counts(found)


def test_counts_with_drafts_are_unknown_and_never_those_of_a_prompt() -> None:
    found = read(LOADED + timed(50, 1) + hit(20, 5) + timed(19, 1))

    assert [(None, 0, None), (25, 20, 5)] == counts(found)
    assert 1 == found["totals"]["without_length"]


def test_a_state_that_resets_in_silence_has_an_unknown_prefix() -> None:
    memory = "llama_memory_recurrent: size = 0.04 MiB (     1 cells,   6 layers)\n"
    found = read(memory + LOADED + timed(50, 1) + timed(60, 1))

    assert ["unknown", "unknown"] == [request["known"]["common"] for request in found["requests"]]
    assert [] == found["places"]


def test_the_decimal_mark_and_the_blanks_of_a_timing_do_not_matter() -> None:
    log = LOADED + timed(33, 3) + hit(33, 2) + timed(2, 4)
    wanted = read(log)["requests"]

    assert wanted == read(re.sub(r"(\d)\.(\d\d) ms", r"\1,\2 ms", log))["requests"]
    assert wanted == read(re.sub(r"  +", " ", log))["requests"]


def test_a_call_whose_lines_are_missing_generates_no_negative_number() -> None:
    (found,) = read(LOADED + hit(10, 30) + timed(1, 1))["requests"]

    assert found["generated"] is None
