"""A thousand damaged files: each is refused with a message, quickly, and never with a traceback."""

import json
import random
import re
import time
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from cachesim.errors import ScenarioError
from cachesim.scenario import limits
from cachesim.scenario.files import loads
from tests.scenario.stories import STORY_TOML

Mutation = Callable[[str, random.Random], str]
WRONG = ("nan", "-inf", "1e308", "-7", "0x" + "f" * 40, "true", '"\\u0000"', "[[]]", "{ a = 1 }")
JUNK = ("\x00", "\ufeff", "[", "]]", '"""', "=", "\\", "\u202e", "#", "'", "\ud7ff", "}")


def line_of(text: str, chance: random.Random) -> tuple[list[str], int]:
    lines = text.splitlines()
    filled = [i for i, line in enumerate(lines) if " = " in line]
    return lines, chance.choice(filled)


def wrong_value(text: str, chance: random.Random) -> str:
    lines, at = line_of(text, chance)
    lines[at] = lines[at].partition(" = ")[0] + " = " + chance.choice(WRONG)
    return "\n".join(lines)


def huge_number(text: str, chance: random.Random) -> str:
    lines, at = line_of(text, chance)
    digits = chance.choice(("9" * 30, "9" * 5000, "0x" + "f" * 9000, "1" + "0" * 300))
    lines[at] = lines[at].partition(" = ")[0] + f" = {digits}"
    return "\n".join(lines)


def unknown_key(text: str, chance: random.Random) -> str:
    lines, at = line_of(text, chance)
    lines.insert(at, f"x{chance.randrange(10**6)} = {chance.randrange(9)}")
    return "\n".join(lines)


def misspelt_key(text: str, chance: random.Random) -> str:
    lines, at = line_of(text, chance)
    key, equals, value = lines[at].partition(" = ")
    cut = chance.randrange(len(key))
    lines[at] = key[:cut] + chance.choice("qzx") + key[cut + 1 :] + equals + value
    return "\n".join(lines)


def twice(text: str, chance: random.Random) -> str:
    lines, at = line_of(text, chance)
    return "\n".join([*lines[: at + 1], *lines[at:]])


def junk(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text))
    return text[:at] + chance.choice(JUNK) * chance.choice((1, 3, 3000)) + text[at:]


def cut_off(text: str, chance: random.Random) -> str:
    return text[: chance.randrange(5, len(text) - 40)] + '\n"'


def own_reply(text: str, chance: random.Random) -> str:
    name = chance.choice("ABC")
    return text.replace('prompt = "S a"', f'prompt = "S {name}.reply {name}.reply"')


def outside(text: str, chance: random.Random) -> str:
    file = chance.choice(("../x", "/etc/passwd", "a/b", "..", "C:\\\\x", "~/x", ""))
    return text + f'\n[[step]]\ndo = "slot-save"\nfile = "{file}"\n'


def too_much(text: str, chance: random.Random) -> str:
    return chance.choice(
        (
            text.replace("S = 20", f"S = {limits.PROMPT_TOKENS + 1}"),
            text.replace("predict = 3", "predict = 10000000"),
            text + "[[step]]\nprompt = 'S'\n" * (limits.STEPS + 1),
            text.replace("parallel = 1", "ctx_size = 1000000000"),
            text.replace('preset = "hybrid"', "layers = [" + '"ssm",' * 500 + "]"),
            text.replace('preset = "hybrid"', 'preset = "hybrid"\nwidth = 1000000'),
            text.replace('prompt = "S a"', 'prompt = "' + "S " * 20_000 + '"'),
            text.replace('prompt = "S a"', "prompt = " + "[" * 900 + "]" * 900),
        )
    )


MUTATIONS: tuple[Mutation, ...] = (
    wrong_value, huge_number, unknown_key, misspelt_key, twice, junk, cut_off, own_reply, outside,
    too_much,
)  # fmt: skip


def problems_of(text: str) -> tuple[str, ...] | None:
    """None for a file that is right: a mutation may hit a comment, or what may be any text."""
    try:
        loads(text.encode(errors="surrogatepass"), name="story.toml")
    except ScenarioError as error:
        return tuple(error.problems)
    return None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.__name__)
def test_a_hundred_files_of_each_kind_are_refused_in_words(mutation: Mutation) -> None:
    chance = random.Random(mutation.__name__)
    refused = 0
    for _ in range(400):
        text = mutation(STORY_TOML, chance)
        started = time.process_time()
        problems = None if text == STORY_TOML else problems_of(text)
        if problems is None:
            continue
        refused += 1

        assert time.process_time() - started < 2
        assert problems
        for line in problems:
            assert re.match(r"story\.toml(:\d+)?: ", line)
            assert len(line) < 1000
        if refused == 100:
            break

    assert refused == 100


def test_the_story_itself_is_right() -> None:
    assert problems_of(STORY_TOML) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"a" * (limits.FILE_BYTES + 1)])
def test_what_is_no_scenario_at_all_is_refused(content: bytes) -> None:
    with pytest.raises(ScenarioError):
        loads(content, name="x")


def test_json_is_read_as_well_as_toml() -> None:
    content: dict[str, Any] = tomllib.loads(STORY_TOML)

    assert loads(json.dumps(content).encode(), name="x") == loads(STORY_TOML.encode(), name="x")
