"""Traces are read as they are published, scaled block by block, and played without a network."""

import json
from itertools import islice
from pathlib import Path

import pytest

from cachesim.cli.main import main
from cachesim.engines.family import Profile
from cachesim.engines.tokens import Rope
from cachesim.errors import InputError
from cachesim.play.session import Session
from cachesim.testing.search import workloads
from cachesim.traces.reading import TraceError, TraceRequest, open_trace
from cachesim.traces.replay import Cell, play, scaled
from cachesim.traces.source import Source
from cachesim.traces.verifying import Spelling, spread, verified
from tests.fixtures import Capture, output

LINES = [
    {"timestamp": 0, "input_length": 1100, "output_length": 40, "hash_ids": [0, 1, 2]},
    {"timestamp": 5, "input_length": 1024, "output_length": 1, "hash_ids": [0, 1]},
    {"timestamp": 9, "input_length": 1500, "output_length": 70, "hash_ids": [0, 1, 3]},
]


def trace(folder: Path, lines: list[dict[str, object]] | None = None) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines or LINES))
    return path


def test_the_first_request_says_how_many_tokens_a_block_has(tmp_path: Path) -> None:
    unit, requests = open_trace(trace(tmp_path))

    assert 512 == unit
    assert [(1100, 40, (0, 1, 2)), (1024, 1, (0, 1)), (1500, 70, (0, 1, 3))] == [
        (request.length, request.output, request.blocks) for request in requests
    ]


def test_blocks_stay_whole_when_a_trace_is_scaled() -> None:
    asked = [TraceRequest(0.0, 1100, 40, (0, 1, 2)), TraceRequest(5.0, 1024, 1, (0, 1))]

    (_, one, reply), (_, other, _) = scaled(asked, 512, 32)

    assert [(1, 0, 16), (2, 0, 16), (3, 0, 3)] == one.runs
    assert list(other) == list(one)[:32]
    assert 1 == len(reply)


def test_each_server_of_a_trace_has_its_own_flags(tmp_path: Path, capsys: Capture) -> None:
    small = ["-p", "vllm@0.33.0,max_model_len=8"]
    words = ["compare", str(trace(tmp_path)), "-p", "vllm@0.33.0", *small, "-s", "block_size=16"]
    rows = json.loads(output(capsys, [*words, "--format", "json"]))

    expected = [{}, {"block_size": 16}, {"block_size": 16, "max_model_len": 8}]
    assert expected == [row["settings"] for row in rows]
    assert [0, 0, 3] == [row["refused"] for row in rows]
    table = output(capsys, words)
    [refused] = [line for line in table.splitlines() if "-        -" in line]
    assert refused.split()[-1] == "3"
    assert "vllm@0.33.0 refused requests; the first one:" in table


def test_an_answer_that_differs_by_design_is_not_a_wrong_one(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"input_length": 32 * len(blocks), "output_length": 4, "hash_ids": blocks}
        for blocks in ([0, 1, 2, 3, 4], [0, 1, 3, 4])  # the last two move to the left
    ]
    moving = Cell(
        source=Source(name=str(trace(tmp_path, lines)), scale=1, unit=32),
        profile="llama.cpp@b11549",
        model="dense",
        options=(("cache_reuse", 1), ("parallel", 1)),
    )
    found = verified(moving, 9)

    assert (1, (), 1) == (found.sampled, found.wrong, found.by_design)
    assert "0 answers are the same, 1 differs by design of the server" in found.sentence


def test_a_scale_that_cuts_blocks_is_refused() -> None:
    with pytest.raises(InputError, match="must divide the trace's blocks of 512"):
        Source(name="made:1", scale=3).open()


def test_what_is_reused_and_lost_of_a_small_trace(tmp_path: Path) -> None:
    source = Source(name=str(trace(tmp_path)), scale=32)

    found = play(Cell(source=source, profile="vllm@0.33.0", model="dense"))

    assert (3, 0, 35 + 32 + 47) == (found["requests"], found["refused"], found["prompt_tokens"])
    assert 16 + 32 == found["cached"]  # the second prompt is whole blocks: its last is computed
    assert {"last-token": 1, "whole-blocks": 15} == found["lost"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "trace.jsonl:1: not JSON"),
        ("[1]", "trace.jsonl:1: not an object"),
        ('{"input_length": 5}', "no known form of a trace"),
        ('{"input_length": -5, "output_length": 1, "hash_ids": [1]}', "input_length has -5"),
        ('{"input_length": 5, "output_length": 1, "hash_ids": ["a"]}', "hash_ids has a"),
        ('{"input_length": 5000, "output_length": 1, "hash_ids": [1]}', "with --unit"),
        (
            '{"timestamp": true, "input_length": 5, "output_length": 1, "hash_ids": [1]}',
            "timestamp is True",
        ),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line + "\n")

    with pytest.raises(TraceError, match=complaint):
        list(open_trace(path)[1])


def test_a_later_request_with_too_few_blocks_is_named(tmp_path: Path) -> None:
    path = trace(tmp_path, [*LINES, LINES[0] | {"hash_ids": [0, 1]}])

    with pytest.raises(TraceError, match="request 4 has 1100 tokens in 2 blocks"):
        list(open_trace(path)[1])


def test_the_command_plays_a_trace_on_several_servers(tmp_path: Path, capsys: Capture) -> None:
    words = ["compare", str(trace(tmp_path)), "-p", "vllm@0.33.0", "-p", "llama.cpp@b11549"]
    words += ["--scale", "32"]

    status = main([*words, "--model", "dense", "--format", "json"])

    found = json.loads(capsys.readouterr().out)
    assert 0 == status
    assert [63, 48, 63] == [each["cached"] for each in found]


@pytest.mark.parametrize("model", ["hybrid", "swa"])
def test_without_a_network_the_same_is_decided(model: str) -> None:
    profile = Profile.parse("vllm@0.33.0+43569")
    for scenario in islice(workloads(profile, model, seed=5), 12):
        told = [
            [
                (record.reply and record.reply.cached, [event.as_dict() for event in record.events])
                for record in Session(
                    scenario, profile, arithmetic=arithmetic, reads_state=False
                ).run()
            ]
            for arithmetic in ("ring", "counts")
        ]
        assert told[0] == told[1], scenario.name


# A sample of answers is computed from the cache and cold: what is reused wrongly is found.

SERVERS = (
    "llama.cpp@b11549", "ik_llama.cpp@8337e4cd3", "mlx-lm@0.32.2", "vllm@0.33.0",
    "sglang@0.5.23", "marconi@paper",
)  # fmt: skip


def cell(profile: str, model: str, **source: int) -> Cell:
    return Cell(source=Source(name="made:60:4", scale=32, **source), profile=profile, model=model)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("turn", [0, 20])
@pytest.mark.parametrize("profile", SERVERS)
def test_arithmetic_decides_as_counts_do_and_answers_as_a_cold_run_does(
    profile: str, turn: int
) -> None:
    found = verified(cell(profile, "dense", turn=turn), 10)

    assert (10, (), 0) == (found.sampled, found.wrong, found.otherwise)
    assert found.reusing >= 10


@pytest.mark.parametrize("profile", ["mlx-lm@0.32.2+1186", "ik_llama.cpp@d2da6da05+1689"])
def test_a_state_that_is_reused_where_it_does_not_belong_is_found(profile: str) -> None:
    found = verified(cell(profile, "hybrid"), 8)

    assert (8, 8) == (found.sampled, len(found.wrong))
    assert not found.right


def test_a_wrong_answer_is_told_and_ends_with_status_1(capsys: Capture) -> None:
    assert 1 == main(
        ["compare", "made:60:4", "-p", "mlx-lm@0.32.2+1186", "--verify", "2", "--scale", "32"]
    )
    told = " ".join(capsys.readouterr().out.split())
    assert "2 of 27 requests that reused something were computed with and without" in told
    assert (
        "request 1, 16 of 42 tokens reused: the logits of its reply differ from an uncached" in told
    )


def test_right_answers_end_with_status_0_and_are_in_the_json(capsys: Capture) -> None:
    words = ["compare", "made:60:4", "-p", "vllm@0.33.0", "--verify", "3", "--scale", "32"]

    bound, row = json.loads(output(capsys, [*words, "--format", "json"]))
    assert "verified" not in bound
    assert (3, [], 0) == tuple(row["verified"][name] for name in ("sampled", "wrong", "otherwise"))


def test_a_sample_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="--verify is 0"):
        verified(cell("vllm@0.33.0", "dense"), 0)


def test_a_sample_is_spread_over_all_that_reuse() -> None:
    assert [1, 5, 9] == spread([1, 5, 9], 4)
    assert [0, 33, 66, 99] == spread(list(range(100)), 4)
    assert [99] == spread(list(range(100)), 1)


def test_blocks_are_spelt_alike_wherever_they_stand_and_begin_differently() -> None:
    spelling = Spelling()
    one = spelling.of(Rope([(7, 0, 16), (9, 0, 3)]))  # type: ignore[arg-type]
    other = spelling.of(Rope([(7, 0, 16), (8, 0, 3)]))  # type: ignore[arg-type]

    assert one[:16] == other[:16]
    assert one[16] != other[16]
    assert 16 == len(set(one[:16]))
