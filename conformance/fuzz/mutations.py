"""Ways to damage an input: its tree of tables and lists, its text, its bytes."""

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

Chance: TypeAlias = random.Random
Spot: TypeAlias = tuple[Any, Any]
"""A table or list, and the key or index of one value in it."""

SLIGHTLY: Final = 0.7
"""Share of the mutants that are valid as a rule."""

OFTEN: Final = 0.5

WHOLE: Final = (
    0, 1, -1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257,
    300, 511, 512, 513, 1000, 4096, 65535, 65536, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63,
    10**30,
)  # fmt: skip
REAL: Final = (
    0.0, -0.0, 0.1, 0.5, 0.99, 1.0, 1.5, -1.0, 1e-9, 1e12, 1e308, float("inf"), float("nan"),
)  # fmt: skip
WORDS: Final = (
    "", " ", "a", "S", "S S", "S a", "S[:5]", "S[5:2]", "S[:0]", "A.reply", "A.reply[1:]", ".reply",
    "none", "any", "same", "complete", "cancel", "user", "robot", "llama.cpp", "mlx-lm", "b9538",
    "+", "b9538+24143", "\x00", "\x1b[2J", "\u202e", "é" * 40, "x" * 101, "../x", "{S}",
    "{A.reply}", "\ud7ff", "-1", "1e3", "true", "[", "{", "%s", "0.31.3", "words", "draft-mtp",
)  # fmt: skip
ODD: Final[tuple[Any, ...]] = (
    True,
    False,
    None,
    [],
    {},
    [[]],
    [{}],
    {"a": 1},
    [0],
    [1, 2, 3],
    [-1],
    ["S"],
    [None],
)
JUNK: Final = (
    "\x00", "\ufeff", "[", "]]", '"""', "=", "\\", "\u202e", "#", "'", "{", "}", "\n",
    "[[step]]",
)  # fmt: skip


def damaged_tree(tree: Any, chance: Chance, *, others: Sequence[Any], keys: Sequence[str]) -> Any:
    """A copy with some changes; `others` lend parts, `keys` are names that mean something."""
    changed = copy.deepcopy(tree)
    gentle = chance.random() < 0.6
    for _ in range(chance.choice((1, 1, 2) if gentle else (1, 2, 3, 4))):
        spots = list(spots_of(changed))
        if not spots:
            return changed
        holder, key = chance.choice(spots)
        chance.choice(GENTLE if gentle else TREE)(holder, key, chance, others, keys)
    return changed


def varied(tree: Any, chance: Chance) -> Any:
    """A copy with a few values changed as far as its format allows: most readers accept it.

    Numbers become a little larger or smaller, parts of lists are repeated, left out or exchanged,
    keys change their order, and values of one name their places.
    """
    changed = copy.deepcopy(tree)
    for _ in range(chance.choice((1, 1, 2, 3))):
        spots = list(spots_of(changed))
        numbers = [spot for spot in spots if _is_number(spot[0][spot[1]])]
        if numbers and chance.random() < SLIGHTLY:
            _vary_number(*chance.choice(numbers), chance)
        elif spots:
            holder, key = chance.choice(spots)
            if isinstance(holder, list):
                _vary_list(holder, chance)
            else:
                _vary_table(holder, key, chance, spots)
    return changed


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _vary_number(holder: Any, key: Any, chance: Chance) -> None:
    value = holder[key]
    holder[key] = chance.choice((value + 1, max(value - 1, 1), 2 * value, max(value // 2, 1)))


def _vary_list(items: list[Any], chance: Chance) -> None:
    one, other = chance.randrange(len(items)), chance.randrange(len(items))
    match chance.randrange(3):
        case 0:
            items[one], items[other] = items[other], items[one]
        case 1 if len(items) > 1:
            del items[one]
        case _:
            items.insert(other, copy.deepcopy(items[one]))


def _vary_table(table: dict[Any, Any], key: Any, chance: Chance, spots: Sequence[Spot]) -> None:
    value = table[key]
    alike = [
        (holder, place)
        for holder, place in spots
        if place == key and holder is not table and type(holder[place]) is type(value)
    ]
    if alike and chance.random() < SLIGHTLY:
        holder, place = chance.choice(alike)
        table[key], holder[place] = holder[place], value
    else:  # the last key
        table[key] = table.pop(key)


def spots_of(tree: Any) -> Iterator[Spot]:
    """Every place of a tree, but the tokens of long lists only now and then."""
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            places: list[Any] = list(each)
        elif isinstance(each, list):
            places = list(range(len(each))) if len(each) <= 12 else [0, 1, len(each) // 2, -1]
        else:
            continue
        for place in places:
            yield each, place
            waiting.append(each[place])


def anything(chance: Chance) -> Any:
    """A value of no meaning; a copy, for it may be changed again."""
    return copy.deepcopy(chance.choice(chance.choice((WHOLE, WHOLE, REAL, WORDS, ODD))))


def _replace(
    holder: Any, key: Any, chance: Chance, others: Sequence[Any], keys: Sequence[str]
) -> None:
    del others, keys
    holder[key] = anything(chance)


def _nudge(
    holder: Any, key: Any, chance: Chance, others: Sequence[Any], keys: Sequence[str]
) -> None:
    """Another value of the same kind: most that is right and strange is found here."""
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        near = (value + 1, value - 1, value * 2, value // 2, -value, 0, 1, chance.choice(WHOLE))
        holder[key] = chance.choice(near)
    elif isinstance(value, float):
        holder[key] = chance.choice((value / 2, value * 2, 1 - value, chance.choice(REAL)))
    elif isinstance(value, str):
        at = chance.randrange(len(value) + 1)
        holder[key] = chance.choice(
            (value[:at], value[at:], f"{value} {value}", f"{value}+{chance.choice(WORDS)}",
             value[:at] + chance.choice(JUNK) + value[at:], chance.choice(WORDS))
        )  # fmt: skip
    else:
        _replace(holder, key, chance, others, keys)


def _drop(
    holder: Any, key: Any, chance: Chance, others: Sequence[Any], keys: Sequence[str]
) -> None:
    del chance, others, keys
    del holder[key]


def _double(
    holder: Any, key: Any, chance: Chance, others: Sequence[Any], keys: Sequence[str]
) -> None:
    del others, keys
    if isinstance(holder, list):
        at = chance.randrange(len(holder) + 1)
        holder[at:at] = [copy.deepcopy(holder[key])] * chance.choice((1, 1, 2, 5))
    else:
        holder[chance.choice(list(holder))] = copy.deepcopy(holder[key])


def _add(holder: Any, key: Any, chance: Chance, others: Sequence[Any], keys: Sequence[str]) -> None:
    """A key that means something, here or elsewhere."""
    del key
    if isinstance(holder, dict):
        name = chance.choice(keys)
        holder[name] = _found(name, chance, others)


def _lend(
    holder: Any, key: Any, chance: Chance, others: Sequence[Any], keys: Sequence[str]
) -> None:
    """A part of another input, from under the same key where there is one."""
    del keys
    holder[key] = _found(key, chance, others)


def _found(name: Any, chance: Chance, others: Sequence[Any]) -> Any:
    spots = [spot for spot in spots_of(chance.choice(others)) if spot[1] == name]
    if not spots or chance.random() < 0.2:
        return anything(chance)
    inside, at = chance.choice(spots)
    return copy.deepcopy(inside[at])


def _nest(
    holder: Any, key: Any, chance: Chance, others: Sequence[Any], keys: Sequence[str]
) -> None:
    del others
    for _ in range(chance.choice((1, 1, 2, 30, 90))):
        holder[key] = [holder[key]] if chance.random() < 0.5 else {chance.choice(keys): holder[key]}


TREE: Final = (_replace, _nudge, _nudge, _nudge, _drop, _double, _add, _add, _lend, _lend, _nest)


GENTLE: Final = (_nudge, _nudge, _lend, _double, _drop)
"""Mutations that often leave a valid input, which is run."""


def damaged_text(text: str, chance: Chance) -> str:
    """A text with pieces lost, doubled, or put in."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(text) + 1)
        end = min(len(text), at + chance.choice((1, 1, 3, 20, 200)))
        match chance.randrange(5):
            case 0:
                text = text[:at] + text[end:]
            case 1:
                text = text[:at] + text[at:end] * 2 + text[end:]
            case 2:
                text = text[:at] + chance.choice(JUNK) * chance.choice((1, 2, 50)) + text[at:]
            case 3:
                text = text[:at] + str(chance.choice(WHOLE)) + text[end:]
            case _:
                text = text[:at] if chance.random() < 0.3 else text[end:] + text[:at]
    return text


def damaged_bytes(data: bytes, chance: Chance) -> bytes:
    """Bytes flipped, lost, doubled or put in."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(changed) + 1)
        end = min(len(changed), at + chance.choice((1, 4, 8, 64)))
        match chance.randrange(4):
            case 0:
                del changed[at:end]
            case 1:
                changed[at:at] = changed[at:end]
            case 2:
                changed[at:end] = chance.randbytes(end - at)
            case _:
                changed[at:at] = chance.choice((b"\x00", b"\xff" * 8, b"\n", b"{", b"\x80"))
    return bytes(changed)
