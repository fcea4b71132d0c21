"""One step in words: what was reused, what was wrong with it, which rules cost the rest."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cachesim.engines.family import FAMILIES
from cachesim.engines.profile import Profile
from cachesim.report.cells import short_profile
from cachesim.report.rules import Fact, checkpoint_word, is_same_checkpoint, rule_facts


def paragraph(
    runs: Sequence[Mapping[str, Any]], index: int, facts: Sequence[Fact]
) -> RenderableType:
    """A heading, and facts with a word in front of each."""
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(style="quiet", min_width=10, no_wrap=True)
    table.add_column(overflow="fold")
    for word, fact in facts:
        table.add_row(f"  {word}", fact)
    return Group(_heading(runs, index), table)


def _heading(runs: Sequence[Mapping[str, Any]], index: int) -> Text:
    step = runs[0]["steps"][index]
    profiles = [run["profile"] for run in runs]
    names = ", ".join([profiles[0], *map(short_profile, profiles[1:])])
    text = Text(f"{names}, step {step['name']}: ", style="name")
    if step["error"] is not None:
        return text.append(step["error"], style="wrong")
    if step["answer"] == "diverged":
        return text.append("the answer is WRONG, the reuse unsound", style="wrong")
    if step["answer"] == "by-design":
        return text.append("the answer differs, by design of the server", style="lost")
    return text.append(f"{step['cached']} of {step['prompt_tokens']} tokens reused", style="lost")


def step_facts(
    run: Mapping[str, Any], index: int, runs: Sequence[Mapping[str, Any]], *, source: str
) -> Iterator[Fact]:
    """Everything worth saying of one step, in the order a reader asks."""
    step = run["steps"][index]
    if step["message"]:
        yield "server", step["message"]
    yield from rule_facts(step)
    yield from consumed(run, index)
    yield from wrong_facts(step)
    yield from slipped(run, index)
    yield from _elsewhere(step, index, runs)
    if step["answer"] == "diverged" and source and is_provable(run["profile"]):
        engine = run["profile"].partition("@")[0]
        yield "prove it", f"cachesim real {engine} --scenario {source}"


def is_provable(text: str) -> bool:
    """Whether `cachesim real` plays scenarios on a profile: a release with a package, unpatched."""
    profile = Profile.parse(text)
    family = FAMILIES.get(profile.engine)
    return family is not None and not profile.patches and profile.release in family.real()


def consumed(run: Mapping[str, Any], index: int) -> Iterator[Fact]:
    """Which earlier step took a parked conversation that this one would have needed."""
    step = run["steps"][index]
    explanation = step["explanation"] or {}
    if explanation.get("ideal", 0) <= explanation.get("equal", 0):
        return
    for earlier in reversed(run["steps"][:index]):
        taken = [
            event["n_tokens"]
            for event in earlier["events"]
            if event["event"] == "cache-entry-loaded" and not event["kept"]
        ]
        if max(taken, default=0) >= explanation["ideal"]:
            shared = earlier["explanation"]["equal"]
            fact = (
                f"step {earlier['name']} loaded the parked {taken[0]} tokens for the {shared} it"
                " shares with them; the entry left the prompt cache, the rest was overwritten"
            )
            yield "consumed", fact
            return


def wrong_facts(step: Mapping[str, Any]) -> Iterator[Fact]:
    """What is wrong with an answer, and whose tokens the wrong memory holds."""
    explanation = step["explanation"] or {}
    wrong, fault = explanation.get("wrong"), explanation.get("fault")
    if wrong:
        same = wrong["token"] == wrong["cold"]
        tokens = "same token, by chance" if same else f"token {wrong['token']}"
        cold = "" if same else f", a cold run says {wrong['cold']}"
        yield (
            "wrong",
            (
                f"generated token {wrong['step'] + 1}: {tokens}{cold};"
                f" logits off by {wrong['difference']:.2g}"
            ),
        )
    if fault:
        yield "because", _because(fault)


def _because(fault: Mapping[str, Any]) -> str:
    place = {"recurrent": "the recurrent state", "attention": "attention", "window": "the window"}
    where = f"{place[fault['place']]} of layer {fault['layer']}"
    if fault["holds"] is None:
        return f"{where} holds nothing where token {fault['expected']} belongs"
    whose = f" ({fault['comes_from']})" if fault["comes_from"] else ""
    text = f"{where} has folded in token {fault['holds']}{whose} at position {fault['position']}"
    if fault["place"] != "recurrent":
        text = f"{where} holds token {fault['holds']}{whose} at position {fault['position']}"
    if fault["expected"] is None:
        return f"{text}, which is no place of this prompt"
    return f"{text}, where this prompt has {fault['expected']}"


def slipped(run: Mapping[str, Any], index: int) -> Iterator[Fact]:
    """How a checkpoint that led astray came about, and which erasures let it through."""
    step = run["steps"][index]
    restored = next((e for e in step["events"] if e["event"] == "checkpoint-restored"), None)
    if step["answer"] not in {"diverged", "by-design"} or restored is None:
        return
    key = checkpoint_word(restored)
    made = _made_before(run, index, restored)
    yield "restored", f"checkpoint {key}" + ("" if made is None else f", made by step {made}")
    for name, kept in _kept_before(run, index, restored):
        yield (
            "kept by",
            (
                f"step {name}, which shares {kept['shared']} tokens with it. Rule: erase if"
                f" {kept['rule']}. Here {kept['numbers']} is false, so it stayed."
            ),
        )


def _history(run: Mapping[str, Any], index: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The events up to the restore in a step, newest first."""
    for step in reversed(run["steps"][: index + 1]):
        events = step["events"]
        if step is run["steps"][index]:
            names = [event["event"] for event in events]
            events = events[: names.index("checkpoint-restored")]
        yield from ((step["name"], event) for event in reversed(events))


def _made_before(run: Mapping[str, Any], index: int, restored: Mapping[str, Any]) -> str | None:
    made = (
        name
        for name, event in _history(run, index)
        if event["event"] == "checkpoint-created" and is_same_checkpoint(event, restored)
    )
    return next(made, None)


def _kept_before(
    run: Mapping[str, Any], index: int, restored: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, event in _history(run, index):
        if event["event"] == "checkpoint-created" and is_same_checkpoint(event, restored):
            return
        if event["event"] == "checkpoint-kept" and is_same_checkpoint(event, restored):
            yield name, event


def _elsewhere(
    step: Mapping[str, Any], index: int, runs: Sequence[Mapping[str, Any]]
) -> Iterator[Fact]:
    """Where the same step went better."""
    for run in runs:
        other = run["steps"][index]
        right = other["error"] is None and other["answer"] in {"same", "rounding"}
        wrong = step["answer"] == "diverged" or step["error"] is not None
        if right and (wrong or (other["cached"] or 0) > (step["cached"] or 0)):
            text = f"answer {other['answer']}, {other['cached']} of {other['prompt_tokens']} reused"
            yield "but with", f"{short_profile(run['profile'])}: {text}"
