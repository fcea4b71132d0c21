"""The five frames of the home page and of the picture that people post, each out of a run.

Chats A and B begin with the same six words; B's code is another one. B is told A's code where the
checkpoint that B resumes from has read it.
"""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cachesim import Run, run_scenario
from cachesim.model.recall import text_of
from cachesim.play.result import StepDetail
from cachesim.play.states import CheckpointState, State
from cachesim.report.picture import Row, checkpoint_word, clip, held, restored
from cachesim.report.texts import Bar
from cachesim.scenario.shipped import shipped_file

SCENARIO: Final = "llama.cpp-two-codes"
RELEASED: Final = "llama.cpp@b11549"
FIXED: Final = f"{RELEASED}+erase-equal"
LENGTHS: Final = (100, 200, 300, 400, 500, 505, 510, 515, 520, 525, 530, 600, 800, 1000)
"""Words that B sends after its code: the positions of the slider."""
SHOWN: Final = 600
"""Where the slider stands first."""
DRAWN: Final = 11
"""Positions that are drawn: those of A's prompt. B's long text begins at the eighth."""
LONG: Final = 8
A, B_READS, B_ASKS = 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A frame: its word, its sentence, the server's memory and the checkpoint that matters."""

    word: str
    sentence: str
    rows: tuple[Row, ...]
    answered: bool = False  # B has its reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The story at one length, with or without the fix."""

    moments: tuple[Moment, ...]
    chats: tuple[str, str, str]  # what A asks, how B begins, what B asks
    told_a: str
    reply: str
    right: str


def told(length: int, *, fixed: bool = False) -> Told:
    """Run the scenario with this many words, and tell it in five frames."""
    mapping: dict[str, Any] = tomllib.loads(shipped_file(SCENARIO).read_text(encoding="utf-8"))
    mapping["spans"]["document"] = length
    del mapping["expect"]  # of another length
    run = run_scenario(mapping, profile=FIXED if fixed else RELEASED, detail=True)
    prompts = [_words(run, step) for step in (A, B_READS, B_ASKS)]
    (a, _), (reply, right) = (_replies(run, step) for step in (A, B_ASKS))
    return Told(
        moments=tuple(_moments(run, length)),
        chats=(_said(prompts[0]), _said(prompts[1][:LONG]), _said(prompts[2])),
        told_a=a,
        reply=reply,
        right=right,
    )


def _moments(run: Run, length: int) -> Iterator[Moment]:
    shared = run.steps[B_READS].cached or 0
    saved = next(
        state
        for state in _after(run, A).slots[0].checkpoints
        if state.made_by == A and state.n_tokens > shared
    )
    kept = _checkpoint(run, A, saved)
    code, other = (_words(run, step)[shared] for step in (A, B_READS))
    a, b = (_memory(run, step, length) for step in (A, B_READS))
    yield Moment(
        word="A asks",
        sentence=f"Chat A says that alice's code is {code}, asks for it, and is told {code}.",
        rows=(a, Row(kind="checkpoint", label=CHECKPOINT, bars=())),
    )
    yield Moment(
        word="saved",
        sentence=f"The server has saved a checkpoint: its memory after {saved.n_tokens} words. "
        f"The last one is {code}.",
        rows=(a, kept),
    )
    yield Moment(
        word="B writes",
        sentence=f"Chat B begins with the same {shared} words. Then its code is {other}.",
        rows=(b, kept),
    )
    test = next(
        event.as_dict()
        for event in run.steps[B_READS].events
        if event.name() in {"checkpoint-kept", "checkpoint-erased"}
        and event.as_dict()["pos_max"] == saved.pos_max
    )
    gone = test["event"] == "checkpoint-erased"
    fate, verdict = ("erased", "true") if gone else ("kept", "false")
    struck = tuple(replace(bar, kind="gone", text="", words=()) for bar in kept.bars)
    yield Moment(
        word=fate,
        sentence=f"A's checkpoint doesn't fit B. Rule: erase it if {test['rule']}. "
        f"{test['numbers']} is {verdict}: {fate}.",
        rows=(
            b,
            replace(
                kept,
                bars=struck if gone else kept.bars,
                note=f"{fate}: {test['numbers']} is {verdict}",
            ),
        ),
    )
    used = restored(run, B_ASKS)
    if used is None:
        raise ValueError("the last request resumes from no checkpoint")
    reply, right = _replies(run, B_ASKS)
    source = {A: "A's checkpoint", B_READS: "a newer checkpoint, saved from B"}[used.made_by or 0]
    if used.made_by == A and used.n_tokens <= shared:
        source = f"the checkpoint before it, of the {shared} shared words"
    yield Moment(
        word="right" if reply == right else "wrong",
        sentence=f"B asks. The server resumes from {source}, so B is told {reply}.",
        rows=(
            _memory(run, B_ASKS, length),
            replace(_checkpoint(run, B_READS, used), note="B resumes from here"),
        ),
        answered=True,
    )


MEMORY: Final = "the server's memory"
CHECKPOINT: Final = "checkpoint (memory saved for later)"


def _detail(run: Run, step: int) -> StepDetail:
    found = run.steps[step].detail
    if found is None:
        raise ValueError("a run without details")
    return found


def _said(words: Sequence[str]) -> str:
    return " ".join(words).replace(" .", ".").replace(" ?", "?")


def _words(run: Run, step: int) -> list[str]:
    return [text_of((token,)) for token in _detail(run, step).prompt]


def _replies(run: Run, step: int) -> tuple[str, str]:
    row = _detail(run, step).logits[0]
    return text_of((row.cached,)), text_of((row.cold,))


def _after(run: Run, step: int) -> State:
    states = () if run.detail is None else run.detail.states
    return states[_detail(run, step).at[-1]]


def _memory(run: Run, step: int, length: int) -> Row:
    """What the recurrent state has read after a request; B's text as one bar."""
    row = next(row for row in held(run, _after(run, step)) if row.kind == "recurrent")
    if all(bar.end <= DRAWN for bar in row.bars):
        return replace(row, label=MEMORY)
    bars = clip(row, LONG).bars
    text = Bar(
        start=LONG,
        end=DRAWN,
        step=step,
        kind="held",
        text=f"… {length} more words",
        tip=f"{length} words that B sends after its code",
        colours=((DRAWN - LONG, bars[-1].colours[-1][1]),),
    )
    return replace(row, label=MEMORY, bars=(*bars, text))


def _checkpoint(run: Run, step: int, state: CheckpointState) -> Row:
    start = f"checkpoint {checkpoint_word(state)},"
    row = next(row for row in held(run, _after(run, step)) if row.label.startswith(start))
    return replace(row, label=CHECKPOINT)
