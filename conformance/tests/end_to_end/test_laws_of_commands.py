"""Each law of the end-to-end tests can be broken, and a broken one is kept with its files."""

import json
from pathlib import Path
from typing import Any

import pytest

from conformance.end_to_end import bench as bench_module
from conformance.end_to_end.bench import Case, Result, bench
from conformance.end_to_end.client import Answer
from conformance.end_to_end.laws import broken, broken_by_truth, broken_sums
from conformance.end_to_end.lives import paired
from conformance.end_to_end.make import kept, kept_of_others
from conformance.end_to_end.program import Ran
from tests.fixtures import Patch


def ran(out: str = "", err: str = "", status: int = 0) -> Ran:
    return Ran(words=("why", "a.log"), status=status, out=out, err=err, seconds=0.1)


def problems(found: Ran, form: str = "text") -> list[str]:
    return list(broken(found, statuses={0}, form=form))


def request(number: int, prompt: int | None, cached: int | None, **more: Any) -> dict[str, Any]:
    processed = None if prompt is None or cached is None else prompt - cached
    known = dict.fromkeys(("prompt_tokens", "cached", "processed"), "printed")
    return {
        "number": number, "prompt_tokens": prompt, "cached": cached, "processed": processed,
        "slot": 0, "cancelled": False, "known": known, **more,
    }  # fmt: skip


def answer(group: int, prompt: int | None, cached: int | None) -> Answer:
    return Answer(path="/completion", group=group, status=200, prompt=prompt, cached=cached)


@pytest.mark.parametrize(
    ("found", "form", "complaint"),
    [
        (ran(err="cachesim: KeyError: 'b8672'", status=3), "text", "status 3: cachesim: KeyError"),
        (ran(err="cachesim: no", status=2), "text", "status 2 instead of 0"),
        (ran(err="Traceback (most recent call last):"), "text", "a traceback"),
        (ran("65 prompt tokens: 0 reused, 25 processed"), "text", "65 prompt tokens are not 0"),
        (ran("65 prompt tokens: 4 reused, 25 processed, 9 unknown"), "text", "and 9 unknown"),
        (ran("1,183 prompt tokens: 0 reused, 0 processed"), "text", "1,183 prompt tokens are not"),
        (ran("[1, 2"), "json", "no JSON"),
        (ran('{"a": 1}\nb'), "jsonl", "no JSON"),
        (ran('{"runs": 3, "format": 1}'), "json", "docs/schema/output-1.json"),
    ],
)
def test_a_command_line_that_breaks_a_law_is_a_failure(
    found: Ran, form: str, complaint: str
) -> None:
    assert complaint in problems(found, form)[0]


def test_what_keeps_every_law_is_none() -> None:
    assert [] == problems(ran("65 prompt tokens: 40 reused, 25 processed"))


def test_status_2_needs_a_word() -> None:
    assert ["status 2 without a word"] == list(broken(ran(status=2), statuses={2}, form="text"))


@pytest.mark.parametrize(
    ("requests", "totals", "complaint"),
    [
        ([request(0, 10, 4) | {"processed": 5}], {}, "request 0: 10 prompt tokens are not 4"),
        ([request(0, 10, 4)], {"cached": 5}, "totals: cached 5 is not the sum 4"),
        (
            [request(0, 10, 4)],
            {"prompt_tokens": 10, "cached": 4, "processed": 6, "unknown": 1},
            "totals: 10 prompt tokens are not 4 cached, 6 processed and 1 unknown",
        ),
        ([request(0, 10, None)], {"cached": 0}, "totals: cached is 0 where every request's"),
    ],
)
def test_numbers_that_do_not_add_up_are_failures(
    requests: list[dict[str, Any]], totals: dict[str, int], complaint: str
) -> None:
    found = list(broken_sums({"requests": requests, "totals": totals}))

    assert complaint in found[0]


def test_a_number_that_the_server_never_answered_is_a_failure() -> None:
    found = {"requests": [request(0, 10, 4)]}

    assert [] == list(broken_by_truth(found, paired([answer(0, 10, 4)], found["requests"])))
    assert ["request 0: cached 4 (printed), and the server answered 3"] == list(
        broken_by_truth(found, paired([answer(0, 10, 3)], found["requests"]))
    )


def test_a_memory_that_was_cleared_excuses_the_count_before_in_logs_and_recordings() -> None:
    cleared = [{"rule": "seq-rm-refused"}]
    of_log = request(0, 52, 0, why=cleared)
    of_recording = request(0, 52, 0, why="a sentence", losses=cleared)

    for each in (of_log, of_recording):
        pairs = paired([answer(0, 52, 51)], [each])
        assert [] == list(broken_by_truth({"requests": [each]}, pairs))


def test_answers_that_went_out_together_are_paired_by_their_prompts() -> None:
    answers = [answer(0, 10, 0), answer(1, 30, 9), answer(1, 20, 5), answer(2, 40, 30)]
    requests = [request(n, *each) for n, each in enumerate([(10, 0), (20, 5), (30, 9), (40, 30)])]

    assert [0, 2, 1, 3] == sorted(
        (each["number"] for _, each in paired(answers, requests) if each is not None),
        key=[0, 2, 1, 3].index,
    )
    assert all(
        each is not None and (each["prompt_tokens"], each["cached"]) == (one.prompt, one.cached)
        for one, each in paired(answers, requests)
    )


def test_a_request_that_the_log_lacks_is_paired_with_none() -> None:
    answers = [answer(0, 10, 0), answer(1, 20, 5), answer(2, 30, 9)]
    requests = [request(0, 10, 0), request(1, 30, 9)]

    assert [0, None, 1] == [each and each["number"] for _, each in paired(answers, requests)]


def test_an_answer_without_counts_is_paired_by_its_place() -> None:
    answers = [answer(0, None, None), answer(1, None, None), answer(2, 45, 0)]
    requests = [request(0, 12, 0), request(1, 90, 0), request(2, 45, 0)]

    assert [0, 1, 2] == [each and each["number"] for _, each in paired(answers, requests)]


def test_a_failure_is_kept_with_its_files(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench_module, "FAILURES", tmp_path / "failures")
    result = Result()
    with bench("a kind", result) as place:
        place.put("a.log", b"nothing of a server")
        place.try_(Case(words=["why", "a.log"]))
        place.try_(Case(words=["why", "a.log", "--report", "r.html"], writes=("r.html",),
                        statuses=frozenset({2})))  # fmt: skip

    (failure,) = result.failures
    assert ("status 2 instead of 0", "cachesim why a.log") == (failure.problem, failure.line)
    assert b"nothing of a server" == (failure.folder / "a.log").read_bytes()
    assert {2: 2} == result.statuses


def test_a_file_that_was_not_written_is_a_failure(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench_module, "FAILURES", tmp_path / "failures")
    result = Result()
    with bench("a kind", result) as place:
        place.try_(Case(words=["list", "presets"], writes=("r.html",)))

    assert ["status 0, but r.html was not written"] == [
        failure.problem for failure in result.failures
    ]


def test_the_kept_logs_are_of_every_release_and_engine() -> None:
    lives = list(kept())
    names = " ".join(name for name, _, _ in kept_of_others())

    assert {3, 4} == {life.verbosity for life in lives}
    assert all(life.log and any(one.was_launched for one in life.answers) for life in lives)
    assert "ik_llama.cpp" in names
    assert "mlx-lm" in names
    assert json.dumps(lives[0].truth())
