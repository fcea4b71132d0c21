"""Traces as other people keep them: agents, chats, calls, token ids, and lengths alone."""

import gzip
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.errors import InputError
from cachesim.traces.forms import Texts, open_form
from cachesim.traces.reading import TraceError, TraceRequest
from cachesim.traces.replay import Cell, play
from cachesim.traces.source import Source
from tests.fixtures import Capture, Patch


def file(folder: Path, *values: Any, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def requests(path: Path) -> list[TraceRequest]:
    return list(open_form(path)[1])


def reused(path: Path) -> list[int]:
    """Tokens of each request that an unlimited cache holds."""
    rows = [
        play(Cell(source=Source(name=str(path), first=n, scale=1), profile="bound"))["cached"]
        for n in range(1, len(requests(path)) + 1)
    ]
    return [rows[0], *(b - a for a, b in pairwise(rows))]


# -- texts -----------------------------------------------------------------------------------------


def tokens(runs: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
    return [(text, at) for text, first, last in runs for at in range(first, last)]


@pytest.mark.parametrize("common", [0, 1, 15, 16, 17, 40, 63])
def test_texts_with_a_common_beginning_have_as_many_common_tokens(common: int) -> None:
    texts = Texts()
    one = [f"a{n}" for n in range(64)]
    other = one[:common] + [f"b{n}" for n in range(64 - common)]

    first, second, again = (tokens(texts.runs(each)) for each in (one, other, one))

    assert first == again
    assert [64, 64] == [len(first), len(second)]
    equal = [a == b for a, b in zip(first, second, strict=True)]
    assert [True] * common + [False] * (64 - common) == equal


# -- chats -----------------------------------------------------------------------------------------

TALK = [
    {"role": "system", "content": "s" * 40},
    {"role": "user", "content": "u" * 80},
    {"role": "assistant", "content": "a" * 20},
    {"role": "user", "content": "v" * 8},
    {"role": "assistant", "content": "b" * 4},
]


@pytest.mark.parametrize(
    "row",
    [
        {"conversation_hash": "x", "conversation": TALK, "language": "English"},  # WildChat
        {"conversation_id": "x", "conversation": TALK, "turn": 2},  # LMSYS-Chat-1M
        {"messages": TALK},
        {
            "id": "x",  # ShareGPT
            "conversations": [
                {"from": {"user": "human", "assistant": "gpt"}.get(each["role"], each["role"]),
                 "value": each["content"]} for each in TALK
            ],
        },
        {"history": TALK, "trajectory": [{"action": "ls", "observation": "f"}]},  # SWE-agent
        {
            "trajectory": [
                {"role": each["role"].replace("assistant", "ai"), "text": each["content"]}
                for each in TALK
            ]
        },
    ],
)  # fmt: skip
def test_a_conversation_is_a_request_for_each_reply(row: dict[str, Any], tmp_path: Path) -> None:
    path = file(tmp_path, row)

    one, two = requests(path)

    assert [1 + 10 + 1 + 20 + 1, 33 + 5 + 1 + 2 + 1] == [one.length, two.length]
    assert [5, 1] == [one.output, two.output]
    assert [0, 33 + 5] == reused(path)


def test_the_times_of_turns_are_those_of_the_chat(tmp_path: Path) -> None:
    talk = [{**each, "timestamp": f"2023-04-09T00:02:0{at}Z"} for at, each in enumerate(TALK)]

    one, two = requests(file(tmp_path, {"conversation": talk}))

    assert 2000 == two.time - one.time


def test_steps_of_an_agent_are_the_queries_that_it_sent(tmp_path: Path) -> None:
    steps = [
        {"query": TALK[:2], "response": "a" * 20, "action": "ls"},
        {"query": [TALK[0], *TALK[2:4]], "response": "b" * 4, "action": "cat"},  # history was cut
    ]

    path = file(tmp_path, {"trajectory": steps, "history": TALK})

    assert [33, 1 + 10 + 1 + 5 + 1 + 2 + 1] == [request.length for request in requests(path)]
    assert [0, 11] == reused(path)


def test_a_document_of_many_lines_is_read_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.traj"
    path.write_text(json.dumps({"trajectory": [], "history": TALK}, indent=1))
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps([{"messages": TALK}, {"messages": TALK}], indent=2))

    assert [2, 4] == [len(requests(each)) for each in (path, rows)]


# -- calls -----------------------------------------------------------------------------------------

ANSWER = {"choices": [{"message": {"role": "assistant", "content": "a" * 20}}]}


@pytest.mark.parametrize(
    "row",
    [
        {"model": "m", "messages": TALK[:2]},
        {"custom_id": "1", "url": "/v1/chat/completions", "body": {"messages": TALK[:2]}},
        {"request": {"messages": TALK[:2]}, "response": {"body": ANSWER}},
        {"messages": TALK[:2], "response": ANSWER},
    ],
)
def test_a_logged_call_is_one_request(row: dict[str, Any], tmp_path: Path) -> None:
    (found,) = requests(file(tmp_path, row))

    assert 33 == found.length
    assert ("response" not in row, 5 if "response" in row else 1) == (found.silent, found.output)


def test_tools_of_a_call_stand_first(tmp_path: Path) -> None:
    row = {"messages": TALK[:2]}

    path = file(tmp_path, row, row | {"tools": [1]}, row | {"tools": [2]})

    assert [33, 35, 35] == [request.length for request in requests(path)]
    assert [0, 1, 1] == reused(path)  # the role


def test_a_completion_is_a_text(tmp_path: Path) -> None:
    assert [0, 10] == reused(file(tmp_path, {"prompt": "p" * 40}, {"prompt": "p" * 44}))


# -- token ids -------------------------------------------------------------------------------------


def test_token_ids_are_the_tokens(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        {"prompt_token_ids": [*range(40)], "output_token_ids": [90, 91]},
        {"prompt_token_ids": [*range(21), 7, 7]},
    )

    one, two = requests(path)

    assert [(40, 2, False), (23, 1, True)] == [(e.length, e.output, e.silent) for e in (one, two)]
    assert [0, 21] == reused(path)


def test_sglangs_request_log_has_requests_as_they_came(tmp_path: Path) -> None:
    def line(event: str, rid: str, second: int, **more: Any) -> dict[str, Any]:
        time = f"2026-10-01T00:00:{second:02d}.250000"
        return {"timestamp": time, "event": f"request.{event}", "rid": rid, **more}

    path = file(
        tmp_path,
        line("received", "a", 1, obj={"input_ids": [1, 2, 3]}),
        line("received", "b", 2, obj={"text": "t" * 8}),
        line("finished", "b", 3, obj={"text": "t" * 8}, out={"text": "r" * 12}),
        line("finished", "a", 9, obj={"input_ids": [1, 2, 3]}, out={"output_ids": [4, 5]}),
        line("received", "c", 10, obj={"input_ids": [6]}),
    )

    found = requests(path)

    assert [(3, 2), (2, 3), (1, 1)] == [(each.length, each.output) for each in found]
    assert [False, False, True] == [each.silent for each in found]
    assert 1000 == found[1].time - found[0].time


def test_sglangs_log_has_times_and_batches_around_its_requests(tmp_path: Path) -> None:
    """Lines of 0.5.23 begin with a time, and the server prints them beside its batches."""
    at = "[2026-10-01 00:00:01] "
    received, finished = (
        f'{at}{{"timestamp": "2026-10-01T00:00:01.25", "event": "request.{event}", "rid": "a", '
        f'"obj": {{"input_ids": [1, 2, 3]}}, "out": {{"output_ids": [4, 5]}}}}\n'
        for event in ("received", "finished")
    )
    batch = f"{at}Prefill batch, #new-seq: 1, #new-token: 3, #cached-token: 0, token usage: 0.00\n"
    path = tmp_path / "server.log"
    for text in (batch + received + batch + finished, received + finished):
        path.write_text(text)

        assert [(3, 2, False)] == [(e.length, e.output, e.silent) for e in requests(path)]


@pytest.mark.parametrize("number", ["9" * 5000, "1 2", "9" * 19])
def test_a_token_id_of_vllms_log_that_cannot_be_is_refused(number: str, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(
        f"INFO Request cmpl-0 details: prompt: 'x', prompt_token_ids: [1, {number}], x: None.\n"
    )
    with pytest.raises(InputError, match=r"server.log:1: .* is no token id|no request in it"):
        requests(path)


def test_vllms_log_has_the_token_ids(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(
        "INFO 10-01 00:00:00 [api_server.py:1] vLLM API server version 0.33.0\n"
        "DEBUG [request_logger.py:56] Request cmpl-a-0 details: prompt: '[9]', prompt_token_ids: "
        "[1, 2, 3, 4], prompt_embeds shape: None.\n"
        "INFO [request_logger.py:66] Received request cmpl-a-0: params: x, lora_request: None.\n"
        "DEBUG [request_logger.py:56] Request chatcmpl-b details: prompt: None, prompt_token_ids: "
        "[1, 2, 5], prompt_embeds shape: None.\n"
        "DEBUG [request_logger.py:112] Generated response chatcmpl-b (streaming delta) details: "
        "output_token_ids: [7]\n"
        "DEBUG [request_logger.py:112] Generated response chatcmpl-b (streaming delta) details: "
        "output_token_ids: [8, 9]\n"
        "DEBUG [request_logger.py:112] Generated response chatcmpl-b (streaming complete) details: "
        "output_token_ids: None\n"
        "DEBUG [request_logger.py:112] Generated response chatcmpl-b details: output_token_ids: "
        "[7]\n"
        "DEBUG [request_logger.py:112] Generated response cmpl-a details: "
        "output_token_ids: [8, 8]\n"
    )

    found = requests(path)

    assert [(4, 2, False), (3, 3, False)] == [(e.length, e.output, e.silent) for e in found]
    assert [0, 2] == reused(path)


# -- agents ----------------------------------------------------------------------------------------


def call(t: float, length: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": length, "out": 9, "hash_ids": ids, **more}


AGENTS = {
    "id": "trace_0001",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        call(0.0, 128, [1, 2]),
        {"t": 5.0, "type": "subagent", "requests": [call(0.0, 64, [7]), call(2.0, 70, [7])]},
        call(6.0, 200, [1, 2, 3]),
    ],
}


def test_requests_of_sub_agents_come_at_their_time(tmp_path: Path) -> None:
    path = file(tmp_path, AGENTS)

    found = requests(path)

    assert [0, 5000, 6000, 7000] == [each.time for each in found]
    assert [2, 1, 4, 2] == [len(each.blocks) for each in found]
    assert [0, 0, 128, 64 - 0] == reused(path)


def test_absolute_times_of_sub_agents_stay(tmp_path: Path) -> None:
    marker = {"t": 5.0, "type": "subagent", "requests": [call(5.5, 64, [7])]}

    found = requests(file(tmp_path, {**AGENTS, "requests": [call(0.0, 64, [1]), marker]}))

    assert [0, 5500] == [each.time for each in found]


@pytest.mark.parametrize(("scope", "second"), [("local", 0), ("global", 127)])
def test_ids_are_those_of_a_conversation_or_of_all(scope: str, second: int, tmp_path: Path) -> None:
    one = {**AGENTS, "hash_id_scope": scope, "requests": [call(0.0, 128, [1, 2])]}

    assert [0, second] == reused(file(tmp_path, one, one))


def test_a_folder_of_conversations_is_a_trace(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for at in range(2):
        file(folder, AGENTS, name=f"trace_{at}.json")

    assert 0 == main(["compare", str(folder), "-p", "vllm@0.33.0", "--model", "dense"])

    printed = " ".join(capsys.readouterr().out.split())
    assert "8 requests" in printed
    assert "the conversations have no common clock: all start at once" in printed


# -- lengths ---------------------------------------------------------------------------------------

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,0,0,0,API log\n"
    "48,GPT-4,417,276,693,Conversation log\n"
)


def test_a_table_with_hashes_is_not_taken_for_lengths(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "blocks.csv"
    file.write_text('timestamp,input_length,output_length,hash_ids\n0,600,5,"[1,2]"\n')

    assert main(["compare", str(file), "--profile", "vllm@0.33.0"]) == 2
    assert "the column hash_ids is read from JSON Lines and Parquet" in capsys.readouterr().err


def test_tables_of_lengths_have_no_token_in_common(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE + "2023-11-16 18:17:04.0319600,3180,8\n")

    found = requests(path)

    assert [(0.0, 4808, 10), (52.0, 3180, 8)] == [
        (round(each.time), each.length, each.output) for each in found
    ]
    assert [0, 0] == reused(path)
    assert 0 == main(["compare", str(path), "-p", "vllm@0.33.0", "--model", "dense"])
    assert "no two prompts have a token in common" in " ".join(capsys.readouterr().out.split())


def test_burstgpts_failures_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "BurstGPT_1.csv"
    path.write_text(BURST)

    assert [(0, 472, 18), (43_000, 417, 276)] == [
        (request.time, request.length, request.output) for request in requests(path)
    ]


# -- how files are packed --------------------------------------------------------------------------


def test_parquet_and_zstandard_are_read_with_pyarrow(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"conversation_hash": "x", "conversation": TALK}]
    plain = file(tmp_path, *rows)
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    with arrow.CompressedOutputStream(str(tmp_path / "rows.zst"), "zstd") as out:
        out.write(plain.read_bytes())
    (tmp_path / "rows.gz").write_bytes(gzip.compress(plain.read_bytes()))

    for name in ("rows.parquet", "rows.zst", "rows.gz"):
        assert requests(plain) == requests(tmp_path / name)
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "rows.parquet").read_bytes()[:100])
    with pytest.raises(TraceError, match="is Parquet, and cut or damaged"):
        requests(tmp_path / "cut.parquet")
    (tmp_path / "cut.zst").write_bytes((tmp_path / "rows.zst").read_bytes()[:-20])
    with pytest.raises(TraceError, match=r"is compressed, and cut or damaged|not JSON"):
        requests(tmp_path / "cut.zst")


@pytest.mark.parametrize(
    ("module", "head"), [("Parquet", b"PAR1"), ("compressed", b"\x28\xb5\x2f\xfd")]
)
def test_without_pyarrow_its_extra_is_named(
    module: str, head: bytes, tmp_path: Path, monkeypatch: Patch
) -> None:
    for place in ("cachesim.packed", "cachesim.traces.reading"):
        monkeypatch.setattr(f"{place}.find_spec", lambda _: None)
    (tmp_path / "rows").write_bytes(head + b"rest")

    with pytest.raises(TraceError, match=rf"is {module}.*pip install 'cachesim\[parquet\]'"):
        requests(tmp_path / "rows")


# -- wrong input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"conversation": [{"content": "x"}]}, "a message without a role"),
        ({"conversation": ["x"]}, "conversation has x; write"),
        ({"messages": []}, "messages is no list of messages"),
        ({"body": {"model": "m"}}, "neither messages nor a prompt"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"trajectory": [{"action": "ls"}]}, "neither queries nor a history"),
        ({"prompt_token_ids": ["x"]}, "prompt_token_ids is .'x'.; write a list of whole numbers"),
        ({"prompt_token_ids": []}, "no prompt; write its token ids"),
        ({"input_ids": [1, "...", 2]}, "a part of input_ids; start SGLang with `--log-requests-l"),
        ({**AGENTS, "block_size": 0}, "block_size has 0; write a whole number"),
        ({**AGENTS, "requests": [3]}, "requests has 3; write an object"),
        ({**AGENTS, "requests": [{"t": -1}]}, "t is -1; write seconds"),
        ({**AGENTS, "requests": [call(0.0, 0, [])]}, "in has 0; write a whole number"),
        ({**AGENTS, "requests": [call(0.0, 64, ["x"])]}, "hash_ids has x"),
        ({**AGENTS, "requests": [{"t": 1.0, "requests": 3}]}, "a sub-agent's requests is no list"),
    ],
)
def test_a_wrong_line_is_named(value: Any, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=complaint) as refused:
        requests(file(tmp_path, value))

    assert "trace.jsonl:1" in str(refused.value)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("2023-11-16 18:17:03,x,10", "'x, 10' are no two numbers of tokens"),
        ("soon,5,10", "timestamp is 'soon'; write seconds or a date"),
    ],
)
def test_a_wrong_row_is_named(row: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE + row + "\n")

    with pytest.raises(TraceError, match=f"trace.csv:3: {complaint}"):
        requests(path)


def test_options_of_blocks_are_refused_of_other_forms(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="--unit is for blocks and events"):
        open_form(file(tmp_path, {"messages": TALK}), unit=16)
