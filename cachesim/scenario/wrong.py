"""What was wrong with an answer, in words: the first token, the memory behind it, and its story."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachesim.scenario.result import Account, Culprit, Fact, Step
from cachesim.scenario.session import Record

PLACES: Final[Mapping[str, str]] = {
    "recurrent": "the recurrent state",
    "attention": "attention",
    "window": "the window",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The steps before one, and what the session recorded of the whole run."""

    steps: tuple[Step, ...]
    records: tuple[Record, ...]

    @property
    def earlier(self) -> tuple[Record, ...]:
        """The records of the steps before."""
        return self.records[: len(self.steps)]

    def maker(self, made_by: int) -> str | None:
        """The step whose task saved a checkpoint; a ticket is the number of its first task."""
        made = [each for each in self.records if each.ticket is not None]
        made = [each for each in made if int(each.ticket or 0) <= made_by]
        return max(made, key=lambda each: int(each.ticket or 0)).name if made else None


# --- what was wrong with the answer ----------------------------------------------------------


def wrong_facts(step: Step, account: Account) -> Iterator[Fact]:
    """The first generated token whose logits are not the cold ones, and the memory behind it."""
    wrong = account.wrong
    if wrong is not None:
        off = f"logits off by {wrong.difference:.2g}"
        number = wrong.step + 1
        if wrong.token == wrong.cold:
            said = f"generated token {number}: same token, by chance; {off}"
        elif step.forced:
            said = (
                f"reply token {number} was given; the server would say {wrong.token},"
                f" a cold run {wrong.cold}; {off}"
            )
        else:
            said = (
                f"generated token {number}: token {wrong.token}, a cold run says {wrong.cold};"
                f" {off}"
            )
        yield Fact(
            word="wrong",
            sentence=said,
            fields={
                "index": wrong.step,
                "token": int(wrong.token),
                "cold": int(wrong.cold),
                "difference": float(wrong.difference),
            },
        )
    if account.fault is not None:
        fields = {
            "place": account.fault.place,
            "position": account.fault.position,
            "matches": account.fault.matches,
            "holds": account.fault.holds,
            "expected": account.fault.expected,
            "comes_from": account.fault.comes_from,
        }
        yield Fact(word="because", sentence=because(account.fault), fields=fields)


def because(fault: Culprit) -> str:
    """How far the wrong memory is right, and what it holds from there on."""
    where = f"{PLACES[fault.place]} of layer {fault.layer}"
    return f"{where} {_of_row(fault) if fault.place == 'recurrent' else _of_cell(fault)}"


def _of_cell(fault: Culprit) -> str:
    """A token too many, none, another one, or the right one after others."""
    at, m, whose = f"at position {fault.position}", fault.matches, _whose(fault)
    if fault.expected is None and fault.holds is None:
        return f"has an empty row {at}, beside that of the token there"
    if fault.expected is None and m == fault.expected_tokens and fault.position >= fault.read_by:
        right = f"is right up to {m}, then " if m else ""
        return f"{right or 'has '}{_counted(fault.holds_tokens - m, fault)} too many{whose}"
    if fault.expected is None:
        return f"holds a token too many {at}: {fault.holds}{whose}"
    if fault.holds is None and m:
        missing = fault.expected_tokens - m
        return f"is right up to {m}, then {missing} token{'s'[: missing != 1]} missing"
    if fault.holds is None:
        return f"holds nothing {at}, where token {fault.expected} belongs"
    if fault.holds == fault.expected:
        return (
            f"holds the right token {at}{whose}, but computed after other tokens:"
            f" its history is right up to {m}"
        )
    return f"holds token {fault.holds}{whose} {at}, where this request has {fault.expected}"


def _of_row(fault: Culprit) -> str:
    m, whose = fault.matches, _whose(fault)
    more = fault.holds_tokens - fault.expected_tokens
    right = f"is right up to {m}, then " if m else ""
    if fault.expected is None:  # all that belongs there is there
        return f"{right or 'has '}{_counted(more, fault)} too many{whose}"
    if fault.holds is None:
        missing = fault.expected_tokens - m
        return f"{right or 'has '}{missing} token{'s'[: missing != 1]} missing"
    if fault.padding:
        padding = f"{fault.padding} padding token{'s'[: fault.padding != 1]}"
        return f"{right or 'has '}{padding} where this request has {fault.expected}"
    count = ""
    if more:
        kind = "more" if more > 0 else "fewer"
        count = f"; {abs(more)} token{'s'[: abs(more) != 1]} {kind} than it should"
    if not m:
        text = f"has folded in token {fault.holds}{whose} at position 0, where this prompt has"
        return f"{text} {fault.expected}{count}"
    return (
        f"is right up to {m}, then has folded in token {fault.holds}{whose}, where this request"
        f" has {fault.expected}{count}"
    )


def _counted(count: int, fault: Culprit) -> str:
    kind = "padding token" if fault.padding >= count else "token"
    return f"{count} {kind}{'s'[: count != 1]}"


def _whose(fault: Culprit) -> str:
    return f" ({fault.comes_from})" if fault.comes_from else ""


# --- how a checkpoint that led astray came to be there ---------------------------------------


def slipped(step: Step, past: Past) -> Iterator[Fact]:
    """The checkpoint that led astray: who made it, and which erasures let it through."""
    if step.answer not in {"diverged", "by-design"}:
        return
    names = [each.name() for each in step.events]
    at = names.index("checkpoint-restored") if "checkpoint-restored" in names else None
    if at is None:
        return
    restored = step.events[at].as_dict()
    word, maker = checkpoint_word(restored), past.maker(restored["made_by"])
    made = f", made by step {maker}" if maker is not None else ""
    fields = {"checkpoint": word, "made_by": maker}
    yield Fact(word="restored", sentence=f"checkpoint {word}{made}", fields=fields)
    for name, kept in _kept(step, at, past, restored):
        yield Fact(
            word="kept by",
            sentence=(
                f"step {name}, which shares {kept['shared']}"
                f" token{'s'[: kept['shared'] != 1]} with it. Rule: erase if"
                f" {kept['rule']}. Here {kept['numbers']} is false, so it stayed."
            ),
            fields={"step": name} | {k: kept[k] for k in ("shared", "rule", "numbers")},
        )


def _kept(
    step: Step, at: int, past: Past, restored: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    history = [(step.name, each) for each in step.events[:at]][::-1]
    for earlier in reversed(past.steps):
        history += [(earlier.name, each) for each in reversed(earlier.events)]
    for name, event in history:
        told = event.as_dict()
        if told["event"] == "checkpoint-kept" and _is_same(told, restored):
            yield name, told


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    named = {"n_tokens", "pos_min", "pos_max", "made_by"} & one.keys() & other.keys()
    return all(one[key] == other[key] for key in named)


def checkpoint_word(checkpoint: Mapping[str, Any]) -> str:
    """A checkpoint as people write it: its tokens where they are known, the positions it covers."""
    return f"{checkpoint.get('n_tokens', '')}[{checkpoint['pos_min']}..{checkpoint['pos_max']}]"
