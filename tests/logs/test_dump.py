"""Recorded requests: the place at which one parts from what it continues, and what it is."""

import json
from io import BytesIO
from typing import Any

import pytest

from cachesim.errors import InputError
from cachesim.logs.live import Live
from cachesim.logs.recorded import told_of_dump
from cachesim.logs.whole import Wanted
from cachesim.report.consoles import plain_text
from cachesim.report.recorded import dump_page
from tests.dumps import read_dump

SYSTEM = "You are a careful assistant. " * 20
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("read", "write", "run")]


def chat(*contents: Any, system: str = SYSTEM, tools: Any = None, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": system}]
    for index, content in enumerate(contents):
        message = content if isinstance(content, dict) else {"content": content}
        messages.append({"role": roles[index % 2], **message})
    request: dict[str, Any] = {"model": "m", "messages": messages}
    if tools is not None:
        request["tools"] = tools
    return {"request": request, "usage": {"prompt_tokens": 1000}, **fields}


def told(*lines: dict[str, Any]) -> dict[str, Any]:
    text = "\n".join(json.dumps(line) for line in lines)
    return told_of_dump(read_dump("dump.jsonl", BytesIO(text.encode())), source="dump.jsonl")


def image(data: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": "Look."}, {"type": "image_url", "url": data}]}


THOUGHT = {"content": "Four.", "reasoning_content": "Two and two make four."}
PARTINGS = [
    ("clock", chat("a", system=f"Now 10:31. {SYSTEM}"), chat("a", system=f"Now 10:32. {SYSTEM}")),
    ("clock", chat("a", system=f"{SYSTEM} 2026-06-02"), chat("a", system=f"{SYSTEM} 2026-06-03")),
    (
        "identifier",
        chat("a", system=f"cch=4defa {SYSTEM}"),
        chat("a", system=f"cch=1c8b4 {SYSTEM}"),
    ),
    ("counter", chat("a", system=f"{SYSTEM} Turn 4"), chat("a", system=f"{SYSTEM} Turn 5")),
    ("whitespace", chat("a  b", "c", "d"), chat("a b", "c", "d")),
    ("reasoning-dropped", chat("2+2", THOUGHT, "so"), chat("2+2", "Four.", "so")),
    ("reasoning-added", chat("2+2", "Four.", "so"), chat("2+2", THOUGHT, "so")),
    ("tools-reordered", chat("a", tools=TOOLS), chat("a", tools=TOOLS[::-1])),
    ("tools-changed", chat("a", tools=TOOLS), chat("a", tools=TOOLS[:2])),
    ("keys-reordered", chat("a", tools=[{"a": 1, "b": 2}]), chat("a", tools=[{"b": 2, "a": 1}])),
    ("attachment-moved", chat(image("x"), "ok", "go"), chat("Look.", "ok", image("x"))),
    ("attachment-changed", chat(image("x"), "ok", "go"), chat(image("y"), "ok", "go")),
    (
        "reminder-moved",
        chat("a", "b", "<system-reminder>be brief</system-reminder> c"),
        chat("a", "b", "c", "d", "<system-reminder>be brief</system-reminder> e"),
    ),
    ("message-removed", chat("one", "two", "three"), chat("two", "three", system=SYSTEM)),
    ("truncated", chat("a long text of many words", "b", "c"), chat("a long text", "b", "c")),
    ("edited", chat("write a poem", "b"), chat("write a song", "b")),
]


@pytest.mark.parametrize(("kind", "one", "other"), PARTINGS)
def test_what_changed_is_named(kind: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    if kind == "message-removed":  # the roles move along with what is left
        one["request"]["messages"][1]["role"] = one["request"]["messages"][2]["role"] = "user"
        one["request"]["messages"][3]["role"] = other["request"]["messages"][2]["role"] = "user"

    second = told(one, other)["requests"][1]

    assert second["parting"]["kind"] == kind
    assert second["continues"] == 0


def test_a_clock_is_shown_with_both_readings_and_its_price() -> None:
    found = told(
        chat("a", system=f"It is 10:31. {SYSTEM}"), chat("a", system=f"It is 10:32. {SYSTEM}")
    )
    parting = found["requests"][1]["parting"]

    assert parting["sentence"] == (
        "message 1 (system) differs at character 10: `10:31` / `10:32`: a clock"
    )
    assert 950 < found["requests"][1]["tokens_after"] < 1000
    assert found["causes"][0]["requests"] == [1]


def test_a_conversation_that_only_grows_parts_nowhere() -> None:
    found = told(chat("a"), chat("a", "b", "c"), chat("a", "b", "c", "d", "e"))

    assert [each["parting"] for each in found["requests"]] == [None, None, None]
    assert [each["continues"] for each in found["requests"]] == [None, 0, 1]


def test_causes_that_recur_are_grouped() -> None:
    found = told(*(chat("a", system=f"It is 10:{minute}. {SYSTEM}") for minute in range(30, 40)))

    (group,) = found["causes"]
    assert (group["kind"], len(group["requests"])) == ("clock", 9)


def test_hashes_without_text_give_the_place_to_a_block() -> None:
    lines = [
        {"segments": [{"part": "message 1", "role": "system", "characters": 300, "hashes": hashes}]}
        for hashes in (["a", "b", "c", "d", "e"], ["a", "b", "x", "d", "e"])
    ]
    found = told(*lines)

    assert found["requests"][1]["parting"]["character"] == 128
    assert found["requests"][1]["equal_characters"] == 128


def test_what_a_template_writes_before_the_first_text_is_learned_from_unrelated_chats() -> None:
    systems = ("You write code.", "Titles, please.", "Be brief. Be kind.", "As a pirate:")
    lines = [
        {
            "request": {"messages": [{"role": "system", "content": system}]},
            "usage": {"prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": cached}},
            "server": {"profile": "mlx-lm@0.32.2"},
        }
        for system, cached in zip(systems, (0, 3, 3, 3), strict=True)
    ]
    requests = read_dump("recorded.jsonl", BytesIO("\n".join(map(json.dumps, lines)).encode()))

    told = Live(Wanted()).add_all(requests)

    assert [0, 0, 3, 3] == [each["replayed"]["cached"] for each in told]


def test_a_number_that_no_request_reaches_is_no_count() -> None:
    usage = {"prompt_tokens": 10**20, "completion_tokens": 10**20}
    entry = {"request": {"prompt": "a b"}, "usage": usage}
    second = {**entry, "number": 1, "seen": {"begins_like": 0, "characters": 10**30}}
    lines = "\n".join(map(json.dumps, (entry, second))).encode()

    requests = read_dump("recorded.jsonl", BytesIO(lines))

    assert [None, None] == [each.prompt_tokens for each in requests]
    assert [None, None] == [each.generated for each in requests]
    assert 2 == len(Live(Wanted(profile="llama.cpp@b9538")).add_all(requests))


def test_counts_come_from_usage_or_timings() -> None:
    found = told(
        chat("a", usage={"prompt_tokens": 70, "prompt_tokens_details": {"cached_tokens": 30}}),
        {"request": {"prompt": "a"}, "timings": {"cache_n": 5, "prompt_n": 7, "predicted_n": 2}},
    )
    first, second = found["requests"]

    assert (first["cached"], first["processed"]) == (30, 40)
    assert (second["prompt_tokens"], second["cached"]) == (12, 5)


@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"request": {}}', b'{"messages": "no"}', b"\xff"])
def test_a_line_that_is_no_request_is_named(line: bytes) -> None:
    with pytest.raises(InputError, match=r"dump\.jsonl:1: "):
        read_dump("dump.jsonl", BytesIO(line))


def test_slots_are_saved_and_restored_after_the_requests_that_ended_before() -> None:
    server = {"server": {"profile": "b11549", "options": {"parallel": 1, "cache_ram": 0}}}

    def asked(number: int, time: float, *texts: str, **who: str) -> dict[str, Any]:
        line = chat(*texts, number=number, time=time, seconds=0.5, slot=0, **server, **who)
        line["usage"] = {"prompt_tokens": 180 + 10 * len(texts), "completion_tokens": 4}
        return line | {"reply": "yes"}

    def acted(number: int, time: float, action: str) -> dict[str, Any]:
        about = {"action": action, "slot": 0, "status": 200, "file": "kept"}
        return {**about, "number": number, "time": time, "seconds": 0.001}

    lines = (
        asked(200, 1.0, "a"),
        acted(201, 1.498, "save"),  # a recorder rounds: it was idle by then
        acted(202, 1.499, "erase"),
        asked(203, 2.0, "b", system="Another one. " * 44),
        acted(204, 2.499, "restore"),
        asked(205, 3.0, "a", "yes", "c"),
    )
    text = "\n".join(json.dumps(line) for line in lines)
    told = told_of_dump(
        read_dump("dump.jsonl", BytesIO(text.encode())), source="x", about=Wanted(model="dense")
    )

    assert [each["number"] for each in told["requests"]] == [200, 203, 205]
    last = told["requests"][-1]
    assert last["continues"] == 200
    assert last["replayed"]["cached"] == 193  # the reply's last token is in no slot
    assert last["slot_taken"] is None


def test_a_line_with_an_unknown_action_is_refused() -> None:
    with pytest.raises(InputError, match=r"dump.jsonl:1: has an action that is none of save"):
        told({"action": "dance", "slot": 0})


def test_flags_with_which_no_server_starts_are_refused_in_words() -> None:
    line = chat("hello") | {
        "usage": {"prompt_tokens": 20, "completion_tokens": 2},
        "server": {
            "profile": "llama.cpp@b11549",
            "model": "hybrid",
            "options": {"batch_size": 1},
        },
    }
    with pytest.raises(InputError, match="no server starts with batch_size 1"):
        told(line)


def found_in(*lines: dict[str, Any]) -> dict[str, Any]:
    text = "".join(f"{json.dumps(each)}\n" for each in lines)
    return told_of_dump(read_dump("dump.jsonl", BytesIO(text.encode())), source="dump.jsonl")


def said_of(found: dict[str, Any]) -> str:
    return " ".join(plain_text(dump_page(found, worst=3), width=500).split())


ASKED = [{"role": "user", "content": "Once upon a time. " * 20}]
AGAIN = [*ASKED, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
KNOWN = {"prompt_tokens": 300, "prompt_tokens_details": {"cached_tokens": 250}}
NO_CACHE = {"prompt_tokens": 300, "completion_tokens": 5}


@pytest.mark.parametrize(
    ("usages", "totals", "words"),
    [
        (
            [None, None],
            [None, None, None],
            "Prompt, reused and processed tokens: unknown, no answer reports them.",
        ),
        (
            [NO_CACHE, NO_CACHE],
            [600, None, None],
            "600 prompt tokens. Reused and processed: unknown",
        ),
        ([NO_CACHE, None], [300, None, None], "300 prompt tokens in 1 of 2 answered requests."),
        (
            [NO_CACHE, KNOWN],
            [600, 250, 50],
            "600 prompt tokens. In 1 of 2 answered requests: 250 reused, 50 processed",
        ),
        ([KNOWN, KNOWN], [600, 500, 100], "600 prompt tokens: 500 reused, 100 processed"),
    ],
)
def test_what_no_answer_reports_is_unknown_and_not_0(
    usages: list[Any], totals: list[int | None], words: str
) -> None:
    requests = [{"messages": ASKED}, {"messages": AGAIN}]
    found = found_in(*({**r, "usage": u} for r, u in zip(requests, usages, strict=True)))

    assert totals == [found["totals"][key] for key in ("prompt_tokens", "cached", "processed")]
    assert words in said_of(found)
    assert (" 0 reused" in said_of(found)) is (totals[1] == 0)


def test_requests_without_counts_that_share_nothing_are_refused() -> None:
    other = [{"role": "user", "content": "Something else"}]

    with pytest.raises(InputError, match="there is nothing to explain"):
        found_in({"messages": ASKED}, {"messages": other})


def test_a_rewrite_is_told_without_counts() -> None:
    changed = [{"role": "user", "content": "Once upon a day. " * 20}, *AGAIN[1:]]
    found = found_in({"messages": AGAIN}, {"messages": changed})

    assert [None] == [each["tokens"] for each in found["causes"]]
    assert "unknown 1 the client" in said_of(found)


def test_a_replay_without_counts_to_compare_says_so() -> None:
    lines = BytesIO("".join(f"{json.dumps({'messages': m})}\n" for m in (ASKED, AGAIN)).encode())
    about = Wanted(profile="b9538")
    said = said_of(told_of_dump(read_dump("d", lines), source="d", about=about))

    assert "no answer reports cached tokens to compare it with" in said
    assert "a length that is estimated from the characters" in said


@pytest.mark.parametrize(
    "line",
    [
        {"messages": ASKED, "response": {"usage": KNOWN}},
        {"messages": ASKED, "metadata": {"usage_object": KNOWN}},
        {"body": {"messages": ASKED}, "response": {"status_code": 200, "body": {"usage": KNOWN}}},
        {"request": {"messages": ASKED}, "response": {"usage": KNOWN}},
    ],
    ids=["LiteLLM", "LiteLLM's metadata", "OpenAI's batch", "request and response"],
)
def test_counts_are_found_where_other_recorders_keep_them(line: dict[str, Any]) -> None:
    (request,) = found_in(line)["requests"]

    assert (300, 250, 50) == (request["prompt_tokens"], request["cached"], request["processed"])


def test_a_prompt_of_0_tokens_is_one_that_was_not_counted() -> None:
    found = found_in({"messages": ASKED, "usage": {"prompt_tokens": 0}}, {"messages": AGAIN})

    assert found["totals"]["prompt_tokens"] is None
