"""What clients do to prompts, by name: a table written before the classifier was looked at."""

import io
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from cachesim.why.explain.live import Live
from cachesim.why.explain.marked import notes_in, reasoning_in
from cachesim.why.explain.whole import UserSettings
from cachesim.why.read.dump import DumpReader

TABLE: Final = tomllib.loads(Path(__file__).with_name("rewrites.toml").read_text("utf-8"))
KINDS: Final = TABLE["kind"]

RULES: Final = "You help with code. " + " ".join(
    f"Rule {n}: keep file number {n} tidy, and report each change of it." for n in range(9)
)

QUESTION: Final = {"role": "user", "content": "Read the file and say what it does."}

NEXT: Final = (
    {"role": "assistant", "content": "It adds two numbers and prints the sum."},
    {"role": "user", "content": "Now write a test for it."},
)


def parting(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """How the second of two requests parts from the first, as `cachesim why` says it."""
    lines = (json.dumps({"request": request}) for request in (earlier, later))
    reader = DumpReader()
    reader.read("two.jsonl", io.BytesIO("\n".join(lines).encode()))
    found = Live(UserSettings()).add_all(reader.requests)[1]["parting"]
    return found or {"kind": "none", "sentence": "", "advice": "", "part": ""}


def tool(short: str) -> dict[str, Any]:
    """A tool of a name, of `name: description`, or of JSON."""
    if short.startswith("{"):
        return {"type": "function", "function": json.loads(short)}
    name, _, about = short.partition(": ")
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": about or f"Does {name}.",
            "parameters": parameters,
        },
    }


def pairs(kind: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Both requests of each variant."""
    rules = {"role": "system", "content": RULES}
    for one, other in kind.get("system", ()):
        before, after = (
            {"role": "system", "content": f"{RULES}\n\n{text}\n\nBe brief. {RULES[:200]}"}
            for text in (one, other)
        )
        yield {"messages": [before, QUESTION]}, {"messages": [after, QUESTION, *NEXT]}
    for one, other in kind.get("tools", ()):
        first, second = ([tool(short) for short in shorts] for shorts in (one, other))
        yield (
            {"tools": first, "messages": [rules, QUESTION]},
            {"tools": second, "messages": [rules, QUESTION, *NEXT]},
        )
    for one, other in kind.get("replies", ()):
        start, mine, his = (
            [rules, QUESTION],
            *({"role": "assistant", "content": t} for t in (one, other)),
        )
        yield {"messages": [*start, mine, NEXT[1]]}, {"messages": [*start, his, NEXT[1], *NEXT]}
    for one, other in kind.get("messages", ()):
        yield {"messages": [rules, *one]}, {"messages": [rules, *other]}


@pytest.mark.parametrize("kind", KINDS, ids=[kind["about"] for kind in KINDS])
def test_each_variant_of_a_rewrite_is_named(kind: Mapping[str, Any]) -> None:
    found = [parting(earlier, later)["kind"] for earlier, later in pairs(kind)]

    assert 3 == len(found)
    assert [] == [name for name in found if name not in kind["named"]]


@pytest.mark.parametrize(("kind", "earlier", "later"), TABLE["printed_by_clients"])
def test_what_a_client_prints_into_its_system_prompt_is_named(
    kind: str, earlier: str, later: str
) -> None:
    ((one, other),) = pairs({"system": [(earlier, later)]})

    assert kind == parting(one, other)["kind"]


def test_no_user_is_blamed_for_a_system_prompt_or_a_tool() -> None:
    of_clients = [kind for kind in KINDS if "system" in kind or "tools" in kind]
    advice = {parting(*pair)["advice"] for kind in of_clients for pair in pairs(kind)}

    assert {False} == {"the user edited" in each for each in advice}


def test_a_users_words_are_no_list_of_files_and_no_clock() -> None:
    for before, after in (("list the files in src", "list the files in lib"), ("May?", "March?")):
        one, other = ({"role": "user", "content": text} for text in (before, after))
        rules = {"role": "system", "content": RULES}
        found = parting(
            {"messages": [rules, one, *NEXT]}, {"messages": [rules, other, *NEXT, NEXT[0]]}
        )

        assert "edited" == found["kind"]


def test_the_changed_text_is_shown_as_two_lines_with_what_stands_around_it() -> None:
    ((one, other),) = pairs({"system": [("Today: Sun Mar 22 2026", "Today: Mon Mar 23 2026")]})

    assert ("- Today: Sun Mar 22 2026", "+ Today: Mon Mar 23 2026") == parting(one, other)["lines"]


def test_reasoning_that_left_a_text_is_gone_and_not_the_message() -> None:
    ((one, other),) = pairs({"replies": [("<think>Sum.</think>It is 4.", "It is 4.")]})

    assert "the reasoning in message 3 (assistant) is gone" == parting(one, other)["sentence"]


def test_prompts_of_tokens_part_at_a_whole_token_and_have_no_counter() -> None:
    first, second = [500, *range(40, 80), 474, 7], [500, *range(40, 80), 499, 7, 9]

    found = parting({"prompt": first}, {"prompt": second})

    assert ("tokens-changed", 41) == (found["kind"], found["character"])
    assert "none" == parting({"prompt": first}, {"prompt": first[:20]})["kind"]
    assert "none" == parting({"prompt": [474, *first]}, {"prompt": [499, *first]})["kind"]


@pytest.mark.parametrize("text", ["<note>" * 50_000, "<think>" * 50_000, "<a-" * 50_000])
def test_marks_that_never_end_cost_no_more_than_their_length(text: str) -> None:
    assert [] == notes_in(text)
    assert 0 == reasoning_in(text)
