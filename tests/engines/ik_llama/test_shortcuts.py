"""Two lists are compared by text the long way only where that can find something."""

import random

import pytest

from cachesim.engines.chat import FIRST_BYTE
from cachesim.engines.ik_llama import slot as matching
from cachesim.engines.ik_llama.slot import common_prefix, texts, without_reasoning
from cachesim.engines.tokens import LONGEST, Rope
from cachesim.units import Token

TEXT_OF = texts("chatml")
NUMBER = 1_023_456_789
TAGS = (("<t>", "</t>"), (f"[{NUMBER}]", "]"))
"""The second opens with the text of an unknown token: a numeral, and every digit of one."""

PIECES = ("a", "b", " ", "\n", "<t>", "</t>", f"[{LONGEST}]", "[")
BEYOND = (LONGEST, LONGEST + 1, 5 * LONGEST, 1 << 40, NUMBER)


def drawn(draw: random.Random) -> list[Token]:
    found: list[Token] = []
    for _ in range(draw.randrange(7)):
        if draw.random() < 0.4:
            found.append(Token(draw.choice(BEYOND)))
        else:
            found += [Token(FIRST_BYTE + ord(each)) for each in draw.choice(PIECES)]
    return found


def test_the_short_way_finds_what_the_long_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(3)
    pairs = [(drawn(draw), drawn(draw), draw.random() < 0.3) for _ in range(6000)]

    def both() -> list[object]:
        return [
            (
                common_prefix(one, other, TEXT_OF, exact=exact),
                [list(without_reasoning(one, tags, TEXT_OF)) for tags in TAGS],
            )
            for one, other, exact in pairs
        ]

    short = both()
    monkeypatch.setattr(matching, "_apart", lambda *_: False)
    monkeypatch.setattr(matching, "_all_unknown", lambda _: False)

    assert both() == short


def test_prompts_of_a_trace_have_no_reasoning_and_stay_as_they_are() -> None:
    prompt = Rope([(7, 0, 100), (9, 3, 20)])

    assert without_reasoning(prompt, TAGS[0], TEXT_OF) is prompt  # type: ignore[arg-type, comparison-overlap]
    assert [0, 1] == list(without_reasoning(Rope.of(0, 2), TAGS[0], TEXT_OF))  # type: ignore[arg-type]
