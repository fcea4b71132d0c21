"""`--like`: shapes of a log, of recorded requests, of a trace, of a scenario."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from cachesim.engines.tokens import get_common_prefix
from cachesim.errors import InputError
from cachesim.probe import loop
from cachesim.probe.command import Settings, run
from cachesim.probe.shapes import Shapes
from tests.probe.fakes import fake

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"


def prompts_of(path: Path, longest: int = 300) -> list[tuple[int, ...]]:
    (steps, *_) = Shapes.read(path).workloads(longest)
    return [tuple(map(int, step.prompt or ())) for step in steps]


@pytest.mark.parametrize(("name", "grows"), [("hybrid.log", True), ("recorded.jsonl", False)])
def test_prompts_share_what_they_shared_in_the_file(name: str, grows: bool) -> None:
    """A chat that grows, and one whose system prompt has a clock near its begin."""
    prompts = prompts_of(EXAMPLES / name)
    assert len(prompts) > 2
    assert all(0 < len(prompt) <= 300 for prompt in prompts)
    shared = [get_common_prefix(one, two) / len(one) for one, two in pairwise(prompts)]
    assert all(share > 0 for share in shared)
    assert all((share > 0.5) == grows for share in shared)


def test_a_scaled_trace_keeps_the_parts_that_are_equal(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    texts = [[[0, 0, 6000]], [[0, 0, 4000], [1, 0, 2000]], [[2, 0, 6000]]]
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    first, second, third = prompts_of(file, 62)
    assert [60, 60, 60] == list(map(len, (first, second, third)))
    assert (40, 0) == (get_common_prefix(first, second), get_common_prefix(first, third))


def test_blocks_of_a_published_trace_are_runs() -> None:
    prompts = prompts_of(ROOT / "tests" / "traces" / "data" / "conversation-300.jsonl.gz")
    assert 8 == len(prompts)
    assert 300 >= max(map(len, prompts)) > 100


CHAT = [
    {"role": role, "content": letter * 160}
    for role, letter in (("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "v"))
]
REPLY = {"role": "assistant", "content": "b" * 40}
CALL = {"choices": [{"message": REPLY}]}
AGENT = [{"t": n, "in": 128 + 64 * n, "out": 1, "hash_ids": [1, 2, 3][: 2 + n]} for n in (0, 1)]
ASKED = "Request c-%d details: prompt: 'x', prompt_token_ids: [%s]\n"


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"conversation": [*CHAT, REPLY]}),
        json.dumps({"messages": [*CHAT, REPLY]}),
        "".join(
            json.dumps({"body": {"messages": messages}, "response": CALL}) + "\n"
            for messages in (CHAT[:2], CHAT)
        ),
        json.dumps({"block_size": 64, "requests": AGENT}),
        "".join(json.dumps({"prompt_token_ids": [*range(n)]}) + "\n" for n in (80, 160)),
        "".join(ASKED % (n, ", ".join(map(str, range(n)))) for n in (80, 160)),
    ],
    ids=["chat", "messages", "calls", "agents", "token ids", "vLLM's log"],
)
def test_traces_of_other_forms_are_shapes(text: str, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text(text)
    first, second = prompts_of(file)
    assert 40 < len(first) < len(second)
    assert first == second[: len(first)]


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "empty.log"
    file.write_text("nothing\n")
    with pytest.raises(InputError, match=r"empty\.log"):
        Shapes.read(file)


@pytest.mark.thorough
def test_requests_of_these_shapes_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.Fingerprint, "of", lambda *_: loop.Fingerprint([]))
    like = EXAMPLES / "hybrid.log"
    with fake("llama", "llama.cpp@b11549") as server:
        result = run(Settings(url=server.url, requests=250, longest=60, like=like)).result
    sent = {len(body["prompt"]) for body in server.bodies}
    assert {len(each) for each in prompts_of(like, 60)} <= sent
    assert result.right
