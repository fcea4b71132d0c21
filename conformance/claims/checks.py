"""Each statement taken apart by its own words, and its numbers found again in the raw run."""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from cachesim.model import recall
from cachesim.play.result import Fact, Step
from cachesim.play.session import Record
from cachesim.typed import there_is
from cachesim.units import Tokens
from cachesim.verify.verdict import SHOWN
from conformance.claims.causes import CAUSES, Lost
from conformance.claims.memory import because, text_of
from conformance.claims.played import Played

NUMBER: Final = re.compile(r"(?<![\w.\-+])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")


@dataclass(slots=True)
class Tally:
    """The number of checked claims, and the false ones."""

    checked: int = 0
    false: list[str] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)

    def claim(self, kind: str, true: bool, what: str) -> None:
        self.checked += 1
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if not true:
            self.false.append(f"{kind}: {what}")


@dataclass(frozen=True, slots=True)
class Case:
    """One step of a run, and where its claims are counted."""

    played: Played
    index: int
    tally: Tally

    @property
    def step(self) -> Step:
        return self.played.steps[self.index]

    @property
    def record(self) -> Record:
        return self.played.records[self.index]

    def claim(self, kind: str, true: bool, what: str) -> None:
        where = f"{self.played.scenario} on {self.played.profile}, step {self.step.name}"
        self.tally.claim(kind, bool(true), f"{where}: {what}")

    def events(self, name: str, task: int | None = None) -> list[dict[str, Any]]:
        named = [event for event in self.record.events if event.name() == name]
        return [event.as_dict() for event in named if task is None or event.task == task]


def check(played: Played, tally: Tally) -> None:
    for index in range(len(played.steps)):
        case = Case(played, index, tally)
        for event in case.step.events:
            sentence = event.sentence
            values = {each.name: getattr(event, each.name) for each in fields(event)}
            case.claim("event", not invented(sentence, values), f"{sentence!r} of {values}")
            match event.name():
                case "checkpoint-erased" if values.get("rule"):
                    case.claim("erased", holds(values["numbers"]), sentence)
                    _rule(case, values)
                case "checkpoint-kept":
                    case.claim("kept", not holds(values["numbers"]), sentence)
                    case.claim("kept shares", values["shared"] < values["n_tokens"], sentence)
                    _rule(case, values)
                case "checkpoint-cut":
                    cut, whole = values["cut_tokens"], values["n_tokens"]
                    case.claim("cut", cut <= values["pos_next"] == values["cut_max"] + 1, sentence)
                    case.claim(
                        "cut", cut < whole and values["cut_max"] < values["pos_max"], sentence
                    )
                case "checkpoint-checked":
                    _refusal(case, values, sentence)
                case "depth-tested":
                    _depth(case, values, sentence)
            if re.search(r"\bhere\b", sentence, re.IGNORECASE):
                case.claim("outcome", _outcome(sentence), sentence)
        for fact in case.step.facts:
            _fact(case, fact)
        _account(case)
        _title(case)


def _fact(case: Case, fact: Fact) -> None:
    """One sentence, by the check of its kind; a kind or a form without a check is false."""
    judge = CHECKS.get(fact.word)
    case.claim("judged", judge is not None, f"{fact.word}: {fact.sentence}")
    if judge is None:
        return
    fact = replace(fact, sentence=re.sub(r'"([^" ]+)"', _number_of, fact.sentence))
    try:
        judge(case, fact)
    except AssertionError:
        case.claim("judged", False, f"{fact.word}, in words that no check knows: {fact.sentence}")


def _number_of(quoted: re.Match[str]) -> str:
    """The token of a word, for the checks, which compare tokens."""
    known = quoted[1] in recall.WORDS
    return str(recall.ASK + recall.WORDS.index(quoted[1])) if known else quoted[0]


# --- small things, written again --------------------------------------------------------------


def prefix(one: Tokens, other: Tokens) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[int, int], bool]]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}


def holds(numbers: str) -> bool:
    """The truth of a text such as `5 > 3 or 2 >= 2`."""
    node = ast.parse(numbers, mode="eval").body
    parts = node.values if isinstance(node, ast.BoolOp) else [node]
    both = isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And)
    return (all if both else any)(_compares(part) for part in parts)


def _compares(node: ast.expr) -> bool:
    assert isinstance(node, ast.Compare)
    left, right = (_sum(each) for each in (node.left, node.comparators[0]))
    return COMPARISONS[type(node.ops[0])](left, right)


def _sum(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp):
        return _sum(node.left) - _sum(node.right)
    return int(ast.literal_eval(node))


def spoken(value: object) -> set[str]:
    """The forms of a value in a sentence."""
    if isinstance(value, bool) or value is None:
        return set()
    if isinstance(value, str):
        return set(NUMBER.findall(value))
    if isinstance(value, float):
        return {f"{value:.3g}", str(int(value)) if value == int(value) else f"{value:.3g}"}
    if isinstance(value, Mapping):
        return set().union(*(spoken(each) for each in value.values())) if value else set()
    if isinstance(value, list | tuple):
        inner = set().union(*(spoken(each) for each in value)) if value else set()
        return inner | {str(len(value)), str(max(0, len(value) - 3))}
    return {str(int(value))} if hasattr(value, "__int__") else set()


def invented(sentence: str, values: Mapping[str, Any]) -> list[str]:
    """Numbers of a sentence that none of its values holds; texts among the values may."""
    known = spoken(values)
    for value in values.values():
        if isinstance(value, str) and value:
            known |= set(NUMBER.findall(value))
            sentence = sentence.replace(value, "")
    sentence = re.sub(
        r"\d+\[-?\d*\.\.-?\d+\]", lambda m: " ".join(re.findall(r"-?\d+", m[0])), sentence
    )
    return [each for each in NUMBER.findall(sentence) if each not in known]


# --- events -----------------------------------------------------------------------------------


def _outcome(sentence: str) -> bool:
    """Whether a comparison is what its sentence says of it; no comparison is in other words."""
    told = re.search(r"\. Rule: \w+ if .*\. Here (.*) is (true|false)$", sentence)
    if told:
        return holds(told[1]) == (told[2] == "true")
    refused = re.search(r" is refused if .*; here (.*)$", sentence)
    return refused is not None and holds(refused[1])


def _depth(case: Case, values: Mapping[str, Any], sentence: str) -> None:
    """The comparison of the raw numbers; checkpoints are looked for only where it is true."""
    refused = values["pos_min"] >= values["threshold"]
    said = f"Here {values['pos_min']} >= {values['threshold']} is {str(refused).lower()}"
    case.claim("depth", sentence.endswith(said), sentence)
    names = ("checkpoint-checked", "checkpoint-restored", "full-reprocessing")
    looked = [event for name in names for event in case.events(name, values["task"])]
    case.claim("depth", bool(looked) == refused, sentence)


def _refusal(case: Case, values: Mapping[str, Any], sentence: str) -> None:
    """A rule refuses what its own words say, and no checkpoint that its words fit qualifies."""
    checked = case.events("checkpoint-checked", values["task"])
    [n_past] = {event["n_past"] for event in case.events("depth-tested", values["task"])}
    known = {
        **{name: values[name] for name in ("pos_min", "pos_max", "n_tokens", "pos_next")},
        "pos_end": values["pos_max"] + 1,
        "pos_min_thold": values["threshold"],
        "n_past": n_past,
        "prefix_end": n_past,
        "n_prompt": len(case.record.prompt),
    }

    def numbers(rule: str) -> str:
        return re.sub(r"[a-z_]+", lambda name: str(known.get(name[0], name[0])), rule)

    if values["refused"]:
        case.claim("refused", values["numbers"] == numbers(values["refused"]), sentence)
        case.claim("refused", holds(values["numbers"]), sentence)
        return
    for rule in {each["refused"] for each in checked} - {""}:
        case.claim("refused", not holds(numbers(rule)), f"{sentence}, and refused if {rule}")


def _rule(case: Case, values: Mapping[str, Any]) -> None:
    """The numbers are those of the rule's own names, as far as the event has them."""
    names = re.findall(r"[a-z_]+", values["rule"].replace(" or ", " "))
    numbers = re.findall(r"-?\d+", re.sub(r"- 1\b", "", values["numbers"]))
    for name, number in zip(names, numbers, strict=False):
        known = {"prefix_end": values.get("shared"), **values}.get(name)
        if known is not None:
            case.claim("rule", int(known) == int(number), f"{values['rule']}: {values['numbers']}")


# --- how much was reused ----------------------------------------------------------------------


def _matched(case: Case) -> Tokens | None:
    """The content of the named holder, if no other request came in between."""
    before = case.record.before
    if before is None or case.record.reply is None:
        return None
    name = case.record.reply.equal_with
    found = [tokens for known, tokens in before if known == name]
    return max(found, key=lambda each: prefix(each, case.record.prompt), default=None)


def _equal(case: Case, fact: Fact) -> None:
    text, prompt = fact.sentence, case.record.prompt
    reply, matched = case.record.reply, _matched(case)
    assert reply is not None
    nothing = r"No prefix of this (\d+)-token prompt is in (?:memory|the memory of \[.+\])\.$"
    found = re.match(nothing, text)
    if found:
        case.claim("equal", int(found[1]) == len(prompt), text)
        if case.record.before is not None:
            shared = [prefix(tokens, prompt) for _, tokens in case.record.before]
            case.claim("equal", max(shared, default=0) == 0, text)
        return
    found = re.match(r"(?:All (\d+) tokens match|The one token matches) (.*)\.$", text)
    if found:
        case.claim("equal", int(found[1] or 1) == len(prompt) == reply.equal, text)
        if matched is not None:
            case.claim("equal", prefix(matched, prompt) == len(prompt), text)
        return
    found = re.match(r"(\d+) of (\d+) tokens match(?:es)? (.*?)(?:\. T|, which)", text)
    assert found, text
    equal = int(found[1])
    case.claim("equal", (equal, int(found[2])) == (reply.equal, len(prompt)), text)
    case.claim("equal", found[3] == reply.equal_with, text)
    if matched is not None:
        case.claim("equal", prefix(matched, prompt) == equal, text)
    _parting(case, text, equal, matched)


def _parting(case: Case, text: str, equal: int, matched: Tokens | None) -> None:
    """The named token, its part, and the token there instead."""
    prompt = case.record.prompt
    found = re.search(
        r"\. Token (\d+)(?: \(in (.*)\))? is (\d+) in the prompt, (\d+) in .*\.$", text
    )
    within = None
    if found:
        within = found[2]
        here = (int(found[1]), int(found[3]))
        case.claim("parting", here == (equal, prompt[equal]), text)
        right = matched is not None and equal < len(matched) and matched[equal] == int(found[4])
        case.claim("parting", right, text)
    elif text.endswith("are new."):
        found = re.search(r"Token \d+(?: \(in (.*)\))? and all after it are new\.$", text)
        assert found, text
        within = found[1]
        earlier = [text_of(record) for record in case.played.records[: case.index]]
        goes_on = [t for t in earlier if len(t) > equal and t[:equal] == prompt[:equal]]
        case.claim("new", not goes_on, text)
    elif ", which ends before" in text:
        case.claim("no more", matched is not None and len(matched) == equal, text)
        found = re.search(r"ends before token \d+(?: \(in (.*)\))?\.$", text)
        assert found, text
        within = found[1]
    else:
        found = re.search(r"\. Token (\d+)(?: \(in (.*)\))? was not found\.$", text)
        assert found, text
        within = found[2]
        case.claim("parting", int(found[1]) == equal, text)
    if within is not None:
        inside = [p for p in case.record.parts if p.start <= equal < p.end and p.name == within]
        case.claim("part", bool(inside), text)


def _cause(case: Case, fact: Fact) -> None:
    found = re.match(r"(\d+) → (\d+)  (.*)$", fact.sentence)
    assert found, fact.sentence
    before, after, words = int(found[1]), int(found[2]), found[3]
    matching = [
        each
        for each in case.step.why
        if (each.before, each.after) == (before, after) and each.rule == fact.fields["id"]
    ]
    case.claim("rule", bool(matching), fact.sentence)
    for loss in matching[:1]:
        known = {**loss.detail, "template": loss.cause.sentence}
        if loss.cause.derived:  # the token to resume at, and the last position that would do
            known |= {"before": before, "latest": loss.detail["threshold"] - 1}
        numbers = not invented(words, known)
        case.claim("rule numbers", numbers, fact.sentence)
        judge = CAUSES.get(loss.rule)
        case.claim("judged", judge is not None, f"cause {loss.rule}")
        lost = Lost(case.played, case.index, before, after, loss.detail)
        case.claim(loss.rule, judge is not None and judge(lost), f"{loss.detail} {fact.sentence}")
        _cause_of(case, loss.rule, loss.detail, before, after)


def _cause_of(case: Case, rule: str, detail: Mapping[str, Any], before: int, after: int) -> None:
    """A cause's claim, against the events of its branch."""
    said = f"{rule} {dict(detail)} {before} to {after}"
    match rule:
        case "memory-depth" | "full-reprocessing":
            tested = [(e["pos_min"], e["threshold"]) for e in case.events("depth-tested")]
            reset = [(e["pos_min"], e["thold"]) for e in case.events("checkpoint-reset")]
            here = (detail["pos_min"], detail["threshold"])
            if tested or reset:
                case.claim("depth", here in [*tested, *reset], said)
            case.claim("depth", detail["pos_min"] >= detail["threshold"], said)
            looked = [e for e in case.events("checkpoint-checked") if e["refused"]]
            named = detail["checkpoints"]
            if looked or tested:
                case.claim("refusals", len(named) == len(looked), said)
        case "checkpoint-restored" | "checkpoint-fallback":
            found = case.events("checkpoint-restored")
            if rule == "checkpoint-restored":
                restored = [
                    e
                    for e in found
                    if (e["pos_min"], e["pos_max"]) == (detail["pos_min"], detail["pos_max"])
                ]
                case.claim("restored", bool(restored), said)
                case.claim("restored", after <= detail["n_tokens"], said)
        case "last-token" | "one-token-is-fed" if "n_tokens" in detail:
            whole = detail["n_tokens"] == len(case.record.prompt) == before
            case.claim("last token", whole and after == before - 1, said)
        case "cache-prompt-off" | "server-reuses-nothing" | "embedding-reuses-nothing":
            _no_reuse(case, rule, after)
        case _:
            _choice_of(case, rule, detail, after)


def _choice_of(case: Case, rule: str, detail: Mapping[str, Any], after: int) -> None:
    """Causes of choosing a slot, or a parked conversation."""
    said = f"{rule} {dict(detail)} to {after}"
    before = dict(case.record.before or ())
    match rule:
        case "slot-tokens" | "f-keep" | "slot-similarity" if case.record.before is not None:
            _slot_claim(case, rule, detail, after)
        case "cache-keep":
            compared = case.events("cache-entry-compared")
            pairs = [(e["n_tokens"], e["f_keep"]) for e in compared]
            right = (detail["n_tokens"], detail["f_keep"]) in pairs
            case.claim("keep", right and detail["f_keep"] < detail["below"], said)
        case "cache-not-better":
            keep, sim = detail["best_keep"] or 0, detail["best_sim"] or 0
            worse = (detail["f_keep"] or 0) <= keep or (detail["f_sim"] or 0) <= sim
            case.claim("not better", worse, said)
        case "cache-unseen" if case.record.before is not None:
            case.claim("unseen", not case.events("cache-search-begun"), said)
        case "list-moved-out":
            slot_events = case.events("cache-search-begun") or case.events("prompt-saved")
            case.claim("list", bool(slot_events) and after == 0, said)
        case "slot-pinned":
            case.claim("pinned", detail["chosen"] == case.step.slot != detail["slot"], said)
        case "adapters-changed":
            case.claim("adapters", bool(case.events("adapters-changed")) and after == 0, said)
        case "not-trimmable" | "trimmed-too-little" if before:
            case.claim("entry", detail["entry"] in set(map(len, before.values())), said)
        case "shorter-entry-first" if before:
            prompt = case.record.prompt
            whole = {len(t) for t in before.values() if prompt[: len(t)] == t}
            case.claim("shorter", detail["used"] in {0, *whole}, said)


def _no_reuse(case: Case, rule: str, after: int) -> None:
    """Causes of reusing nothing by request or flag."""
    match rule:
        case "server-reuses-nothing":
            off = case.played.flags.get("cache_prompt") is False
            case.claim("flag", off and after == 0, rule)
        case "embedding-reuses-nothing":
            asked = case.record.step.options.get("endpoint")
            case.claim("embedded", asked in {"embedding", "rerank"} and after == 0, rule)
        case "cache-prompt-off":
            case.claim("off", not case.record.step.cache_prompt, rule)


def _slot_claim(case: Case, rule: str, detail: Mapping[str, Any], after: int) -> None:
    """A cause's claim on a slot, against the slot's tokens."""
    said = f"{rule} {dict(detail)} to {after}"
    held = dict(case.record.before or ()).get(f"slot {detail['slot']}", ())
    common = prefix(held, case.record.prompt)
    if rule == "f-keep":
        kept = common / max(1, len(held))
        case.claim("f-keep", abs(kept - detail["f_keep"]) < 1e-5 and kept >= 0.5 - 1e-6, said)
    elif rule == "slot-similarity":
        share = common / max(1, len(case.record.prompt))
        case.claim("similarity", detail["threshold"] > 0, said)
        case.claim("similarity", share <= detail["threshold"] + 1e-6, said)
    elif not case.events("cache-entry-loaded") and not case.events("prompt-loaded"):
        case.claim("slot", common == after, said)


def _ideal(case: Case, fact: Fact) -> None:
    found = re.match(r"an ideal cache would have reused (\d+)$", fact.sentence)
    assert found, fact.sentence
    case.claim("ideal", int(found[1]) == _due(case), fact.sentence)


def _due(case: Case) -> int:
    """The longest prefix that any earlier request computed, but for the last token.

    By the same model, under the same adapters; under others, a slot's tokens may be theirs.
    """
    prompt, reply = case.record.prompt, case.record.reply
    before = [
        record
        for record in case.played.records[: case.index]
        if record.step.model == case.record.step.model
        and (record.reply is not None and record.reply.error is None and bool(record.prompt))
    ]
    alike = [
        record
        for record in before
        if reply is not None
        and (() if record.reply is None else record.reply.strengths) == reply.strengths
    ]
    known = max((prefix(text_of(record), prompt) for record in alike), default=0)
    if len(alike) == len(before):
        known = max(known, 0 if reply is None else int(reply.equal))
    return max(0, min(known, len(prompt) - 1))


def _consumed(case: Case, fact: Fact) -> None:
    found = re.match(
        r"(.*) loaded the prompt-cache entry \((\d+) tokens\) for the (\d+) tokens in common; "
        r"the entry left the prompt cache$",
        fact.sentence,
    )
    assert found, fact.sentence
    index = _numbered(case, found[1])
    taker, wanted = case.played.records[index], case.record.prompt[: _due(case)]
    entries = [
        each
        for each in case.played.held_before(index)
        if len(each) == int(found[2]) and each[: len(wanted)] == wanted
    ]
    case.claim("consumed", bool(entries), fact.sentence)
    case.claim(
        "consumed", any(prefix(e, taker.prompt) == int(found[3]) for e in entries), fact.sentence
    )
    loads = [e.as_dict() for e in taker.events if e.name() == "cache-entry-loaded"]
    gone = any(not e["kept"] and e["n_tokens"] == int(found[2]) for e in loads)
    case.claim("consumed", gone, fact.sentence)


def _gone(case: Case, fact: Fact) -> None:
    found = re.match(
        r"(.*) computed these (\d+) tokens; they have been gone since (.*)$",
        fact.sentence,
    )
    assert found, fact.sentence
    wanted = case.record.prompt[: int(found[2])]
    case.claim("gone", len(wanted) == _due(case), fact.sentence)
    computed = case.played.records[_numbered(case, found[1])]
    case.claim("gone", any(record.holds for record in case.played.records), fact.sentence)
    case.claim("gone", computed.snapshot is not case.record.snapshot, fact.sentence)
    case.claim("gone", text_of(computed)[: len(wanted)] == wanted, fact.sentence)
    since = _numbered(case, found[3].split(" and ")[0])
    own = case.record.snapshot  # taken after this step: what came in together is there by then
    between = [r for r in case.played.records[since : case.index] if r.snapshot is not own]
    later = {id(r.snapshot): r for r in between}.values()
    there = [r.name for r in later if any(t[: len(wanted)] == wanted for t in r.holds)]
    case.claim("gone", not there, fact.sentence)
    before = case.played.held_before(since)
    computing = case.played.records[since].snapshot is computed.snapshot
    kept = any(each[: len(wanted)] == wanted for each in before)
    case.claim("gone", kept or computing, fact.sentence)


def _together(case: Case, fact: Fact) -> None:
    found = re.match(
        r"(.*), which arrived together with this one, computed these (\d+) tokens$",
        fact.sentence,
    )
    assert found, fact.sentence
    computed = case.played.records[_numbered(case, found[1])]
    wanted = case.record.prompt[: int(found[2])]
    case.claim("together", computed.snapshot is case.record.snapshot, fact.sentence)
    case.claim("together", text_of(computed)[: len(wanted)] == wanted, fact.sentence)
    case.claim("together", len(wanted) == _due(case), fact.sentence)


def _numbered(case: Case, name: str) -> int:
    return next(i for i, record in enumerate(case.played.records) if record.name == name)


# --- what was wrong ---------------------------------------------------------------------------


def _wrong(case: Case, fact: Fact) -> None:
    text, reply = fact.sentence, case.record.reply
    assert reply is not None
    network = case.played.oracle.network
    found = re.match(
        r"(?:generated|reply) token (\d+)(?: is (?:token )?(\d+), in an uncached run (\d+)"
        r"|: same token, by chance"
        r"| was forced; the server would generate (\d+), an uncached run (\d+));",
        text,
    )
    assert found, text
    replies = (reply, *case.record.children)
    right = False
    for each in replies:
        cold = case.played.oracle.logits(each.prompt, each.generated, each.strengths)
        off = [network.difference(a, b) for a, b in zip(each.logits, cold, strict=True)]
        at = next((i for i, value in enumerate(off) if value), None)
        if at is None:
            continue
        pair = (int(network.sample(each.logits[at])), int(network.sample(cold[at])))
        said = [int(n) for n in found.groups()[1:] if n is not None]
        same = pair[0] == pair[1] if not said else tuple(said) == pair
        right |= at + 1 == int(found[1]) and same
    case.claim("wrong", right, text)


def _leak(case: Case, fact: Fact) -> None:
    """The value, the cold reply, and the requests whose tokens have it, at any generated token."""
    found = re.fullmatch(
        r"the reply is (\S+), an uncached run replies (\S+); only (.*) contained \1",
        fact.sentence,
    )
    assert found, fact.sentence
    reply = there_is(case.record.reply)
    cold = case.played.oracle.logits(reply.prompt, reply.generated, reply.strengths)
    right = False
    for at, (row, other) in enumerate(zip(reply.logits, cold, strict=True)):
        token, text = int(np.argmax(row)), (*reply.prompt, *reply.generated[:at])
        earlier = case.played.records[: case.index]
        names = [e.name for e in earlier if e.reply and token in (*e.prompt, *e.reply.generated)]
        words = [recall.text_of([each]) for each in (token, int(np.argmax(other)))]
        right |= words == [found[1], found[2]] and token not in text
        case.claim("leak", not right or " and ".join(names) == found[3], fact.sentence)
        if right:
            break
    case.claim("leak", right, fact.sentence)


def _because(case: Case, fact: Fact) -> None:
    """The wrong memory, cell by cell and token by token, against the request."""
    wrong = because(case.played, case.index, fact.sentence)
    case.claim("because", not wrong, f"{fact.sentence}: {wrong}")


def _restored(case: Case, fact: Fact) -> None:
    found = re.match(r"checkpoint (\d*)\[(-?\d+)\.\.(-?\d+)\](?:, made by (.*))?$", fact.sentence)
    assert found, fact.sentence
    low, high = int(found[2]), int(found[3])
    restored = case.events("checkpoint-restored")
    here = [e for e in restored if (e["pos_min"], e["pos_max"]) == (low, high)]
    case.claim("restored", bool(here), fact.sentence)
    if found[4] is None:
        return
    maker = case.played.records[_numbered(case, found[4])]
    made = [
        each
        for each in (event.as_dict() for event in maker.events)
        if each["event"] == "checkpoint-created"
        and (each["pos_min"], each["pos_max"]) == (low, high)
        and (not found[1] or each["n_tokens"] == int(found[1]))
    ]
    case.claim("made by", any(e["task"] == h["made_by"] for e in made for h in here), fact.sentence)


def _kept(case: Case, fact: Fact) -> None:
    found = re.match(
        r"(.*), which should have erased it: (?:only (\d+) tokens?|no tokens) in common\. "
        r"Rule: erase if (.*)\. Here (.*) is false, so it survived\.$",
        fact.sentence,
    )
    assert found, fact.sentence
    keeper = case.played.records[_numbered(case, found[1])]
    restored = case.events("checkpoint-restored")[0]
    kept = [
        each
        for each in (event.as_dict() for event in keeper.events)
        if each["event"] == "checkpoint-kept"
        and (each["pos_min"], each["pos_max"]) == (restored["pos_min"], restored["pos_max"])
        and each["made_by"] == restored["made_by"]
    ]
    said = (int(found[2] or 0), found[3], found[4])
    case.claim(
        "kept by", said in [(e["shared"], e["rule"], e["numbers"]) for e in kept], fact.sentence
    )
    case.claim("kept by", not holds(found[4]), fact.sentence)


def _better(case: Case, fact: Fact) -> None:
    found = re.match(r"(.*): answer (.*), (\d+) of (\d+) cached$", fact.sentence)
    assert found, fact.sentence
    case.claim("but with", found[2] in {"matches", "rounding"}, fact.sentence)
    bad = case.step.answer in {"diverged", "by-design"} or case.step.error is not None
    case.claim("but with", bad or int(found[3]) > (case.step.cached or 0), fact.sentence)
    case.claim("but with", int(found[4]) == len(case.record.prompt), fact.sentence)
    twins = [
        played for played in case.played.beside if played.profile.partition("@")[2] == found[1]
    ]
    for twin in twins:
        reply, step = twin.records[case.index].reply, twin.steps[case.index]
        said = (found[2], int(found[3]))
        right = reply is not None and said == (SHOWN[there_is(step.answer)], reply.cached)
        case.claim("but with", right, fact.sentence)
    case.claim("but with", len(twins) == 1, fact.sentence)


def _said_by_server(case: Case, fact: Fact) -> None:
    case.claim("server", fact.sentence == case.record.message, fact.sentence)


def _account(case: Case) -> None:
    """From matched to reused tokens, without a gap."""
    reply = case.record.reply
    if reply is None or reply.cached is None or case.step.explanation is None:
        return
    chain = [int(reply.equal)]
    for loss in case.step.why:
        chain += [int(loss.before), int(loss.after)]
    chain.append(int(reply.cached))
    whole = all(a == b for a, b in list(pairwise(chain))[::2])
    case.claim("adds up", whole, f"{chain}")
    facts = [fact.sentence for fact in case.step.facts if fact.word in {"match", "rule"}]
    rules = [re.fullmatch(r"(\d+) → (\d+)  (.*)", fact) for fact in facts[1:]]
    told = [f"{rule[3]}: {rule[1]} to {rule[2]}." for rule in rules if rule]
    case.claim("sentences", [*facts[:1], *told] == list(case.step.explanation.sentences), "why")
    lost = max(0, _due(case) - int(reply.cached))
    case.claim("lost", case.step.explanation.lost == lost, f"{case.step.explanation.lost} lost")


def _title(case: Case) -> None:
    title = case.step.finding.title
    found = re.match(
        r"Request .*: (\d+) of (\d+) tokens cached; an ideal cache would have had (\d+)\.$", title
    )
    if case.step.finding.fate == "lost":
        assert found, title
        reply = there_is(case.record.reply)
        said = tuple(map(int, found.groups()))
        case.claim("title", said == (reply.cached, len(case.record.prompt), _due(case)), title)
    elif case.step.finding.fate == "wrong":
        case.claim("title", case.step.answer == "diverged", title)
    event = case.step.finding.event
    where = case.played.records[case.step.finding.step]
    case.claim("where", -1 <= event < max(1, len(where.events)), title)


CHECKS: Final[Mapping[str, Callable[[Case, Fact], None]]] = {
    "server": _said_by_server,
    "match": _equal,
    "rule": _cause,
    "ideal": _ideal,
    "consumed": _consumed,
    "gone": _gone,
    "together": _together,
    "wrong": _wrong,
    "leak": _leak,
    "because": _because,
    "restored": _restored,
    "kept by": _kept,
    "but with": _better,
}


def every(played: Iterator[Played]) -> Tally:
    """The claims of several runs."""
    tally = Tally()
    for each in played:
        check(each, tally)
    return tally
