"""Failures that the tests of printed commands detect; no printed command is skipped silently."""

import json
import re
from pathlib import Path

import pytest

from cachesim.prove.llama_cpp.server import environment_for
from conformance.end_to_end.commands import LATEST, alike, flags_of, not_ended, parse, unproven
from conformance.end_to_end.documented import LEFT_OUT, documented, guide_folder, left_out, runnable
from conformance.end_to_end.shell import Shell, printed_lines

LINES = [*dict.fromkeys(documented())]
PROOF = "cachesim real llama.cpp --scenario x"
SHOWN = f"""x

llama.cpp@b9538, b11549, request C: WRONG answer: more was reused than was valid
  equal    20 tokens.
  prove it {PROOF}
"""
TABLE = "x on llama.cpp {release}\n  request\n  C   40  1  39  equal, WRONG  {verdict}\n"
CALLS = [
    """curl -s localhost:8080/completion -d '{"n_probs": 1, "prompt": [[1], [2, 3]]}' &""",
    """curl -s localhost:8081/completion -d '{"n_probs": 1, "prompt": [2, 3]}'""",
]


def test_every_reason_for_leaving_a_command_out_is_needed() -> None:
    for pattern in LEFT_OUT:
        assert any(re.search(pattern, line) for line in LINES), pattern
    left = [line for line in LINES if any(re.search(pattern, line) for pattern in LEFT_OUT)]
    assert len(left) < len(LINES) / 7


def test_no_placeholder_is_left_in_what_is_run() -> None:
    run = [runnable(line) for line in LINES if not left_out(line)]

    assert [] == [line for line in run if re.search(r"\b[A-Z]{3,}\b|\.\.\.", line)]


def test_a_scenario_that_a_guide_writes_is_there_for_each_of_its_commands(tmp_path: Path) -> None:
    named = re.compile(r"\bmy-\w+\.toml")
    lines = [line for line in LINES if named.search(line) and "cachesim new" not in line]

    assert lines
    for number, line in enumerate(lines):
        folder = tmp_path / str(number)
        folder.mkdir()
        guide_folder(folder, line)
        assert [] == [each for each in named.findall(line) if not (folder / each).exists()]


def test_a_proof_that_proves_nothing_is_noticed() -> None:
    both = [
        TABLE.format(release=each, verdict="WRONG 2.9, token 1") for each in ("b9538", "b11549")
    ]
    one = [both[0], TABLE.format(release="b11549", verdict="matches 0")]

    assert "" == unproven(PROOF, SHOWN, "\n".join(both))
    assert "not proven on b11549" in unproven(PROOF, SHOWN, "\n".join(one))
    assert "not proven on b11549: None" == unproven(PROOF, SHOWN, both[0])


def answer(token: int, logprob: float) -> str:
    top = [{"id": token, "logprob": logprob}, {"id": 6, "logprob": -1.5}]
    rows = [{"id": token, "logprob": logprob, "top_logprobs": top}]
    return json.dumps({"tokens": [token], "completion_probabilities": rows})


def shell(*answers: str) -> Shell:
    return Shell(status=0, out="\n".join(answers), err="")


def test_a_report_whose_last_answers_are_alike_is_noticed() -> None:
    several = f"[{answer(9, -3.0)},{answer(7, -1.0)}]"

    assert "" == alike(CALLS, shell(several, answer(8, -1.0)))
    assert "" == alike(CALLS, shell(several, answer(7, -1.3)))
    assert "warm and cold are alike" in alike(CALLS, shell(several, answer(7, -1.001)))
    assert "1 answers with probabilities" in alike(CALLS, shell(answer(7, -1.0)))


def test_a_server_that_does_not_end_as_the_report_says_is_noticed() -> None:
    assert "" == not_ended(shell('{"timings/cache_n":0}', "", ""))
    assert "all requests were answered" in not_ended(shell('{"timings/cache_n":0}', '{"a":1}'))


def test_the_lines_for_a_shell_are_found_in_a_report() -> None:
    report = "a\n\nOn llama-servers of your own; the second one stays cold:\n\n    b\n    c\n\nd"

    assert ["b", "c"] == printed_lines(report)


@pytest.mark.skipif(not environment_for(LATEST).is_ready(), reason=f"{LATEST} is not set up here")
def test_the_servers_own_parser_takes_its_flags_and_refuses_others() -> None:
    known = [*flags_of(LATEST)]
    words = [["--swa-ful"], ["--ubatch-size", "many"], ["--no-swa-full"]]

    assert ([True] * len(known), [False] * 3) == (parse(LATEST, known), parse(LATEST, words))
