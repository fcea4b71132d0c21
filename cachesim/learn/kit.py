"""Functions of the lessons: letters or words as tokens, a memory, a server."""

import base64
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np

from cachesim.engines.family import Profile
from cachesim.engines.llamacpp.memory.attention import AttentionCache
from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.context import INVALID, Context
from cachesim.engines.llamacpp.memory.create import (
    create_memory,
    has_position_sections,
    rollback_depth,
)
from cachesim.engines.llamacpp.memory.hybrid import caches_of, parts_of
from cachesim.engines.llamacpp.memory.rules import B11434
from cachesim.errors import ContractError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.build import build
from cachesim.model.presets import RECALL, preset, tiny
from cachesim.model.recall import encode, text_of
from cachesim.model.spec import ModelSpec
from cachesim.play import run_scenario
from cachesim.play.result import Run, Saved
from cachesim.play.result import Step as Played
from cachesim.scenario.checks import scenario_of
from cachesim.scenario.files import to_toml
from cachesim.units import Array, Token, Tokens, as_tokens
from cachesim.verify.oracle import cold_logits
from cachesim.verify.verdict import SHOWN

FIRST: Final = 280
"""Offset between a letter's code point and its token."""

SMALL: Final = ModelSpec(
    name="small",
    layers=("ssm",),
    width=8,
    mlp_width=0,
    conv_size=2,
    state_size=1,
    inner=2,
    groups=1,
    state_heads=1,
)
"""Mamba-2 layer with a recurrent state of two numbers."""


def tokens(text: str) -> Tokens:
    """The tokens of a text, one per letter."""
    return as_tokens([FIRST + ord(letter) for letter in text])


def letters(ids: Sequence[int]) -> str:
    """Tokens as letters; a dot for other tokens."""
    return "".join(chr(i - FIRST) if 32 <= i - FIRST < 127 else "." for i in ids)


def spelled(spec: ModelSpec, text: str) -> tuple[Tokens, Sequence[str]]:
    """The tokens of a text with their labels: words of a model that recalls facts, else letters."""
    if spec.recall:
        return as_tokens(encode(text)), text.split()
    return tokens(text), text


def cold(model: str | ModelSpec, text: str) -> Array:
    """The logits after a text, computed cold."""
    spec = model_of(model)
    row: Array = cold_logits(spec, spelled(spec, text)[0])[-1]
    return row


def reply(row: Array) -> str:
    """The word with the largest logit."""
    return text_of((int(row.argmax()),))


def model_of(model: str | ModelSpec) -> ModelSpec:
    """A small model, by its preset's name."""
    if isinstance(model, ModelSpec):
        return model
    window = {"window": 4} if "swa" in model else {}
    return preset(model, **window) if model in RECALL else tiny(model, **window)


class Memory:
    """llama.cpp's memory of a small model and network, with few cells."""

    def __init__(
        self, model: str | ModelSpec, *, cells: int = 12, parts: int = 1, rollback: int = 0
    ) -> None:
        self._spec = model_of(model)
        network = build(self._spec)
        depth = rollback_depth(network, rollback, B11434)
        memory = create_memory(
            network, B11434, n_seq_max=2, unified=True, cells=cells, swa_cells=8, n_rs_seq=depth
        )
        self.context = Context(
            network,
            memory,
            rules=B11434,
            n_ctx=cells,
            n_ctx_seq=cells,
            n_batch=cells,
            n_ubatch=parts,
            n_seq_max=2,
            unified=True,
            n_rs_seq=depth,
            sections=has_position_sections(network),
        )
        self._labels: dict[tuple[str, int], str] = {}  # part and cell -> letter

    def read(self, text: str, *, seq: int = 0, at: int | None = None) -> Array:
        """Append a text to a sequence; return the logits after its last token."""
        start = self.context.seq_pos_max(seq) + 1 if at is None else at
        ids, labels = spelled(self._spec, text)
        code = self.context.decode(Batch.of(ids, start=start, seq=seq))
        if code != 0:
            why = self.context.refusal if code == INVALID else "no place"
            raise ValueError(f"decode answers {code}: {why}")
        for name, cache in self._caches():
            cells = cache.streams.cells[0]
            for cell in range(cache.streams.size):
                if int(cells.bits[0, cell]) >> seq & 1 and cells.pos[cell] >= start:
                    self._labels[name, cell] = labels[int(cells.pos[cell]) - start]
        return self.context.logits(len(ids) - 1)

    def seq_rm(self, seq: int, p0: int, p1: int = -1) -> bool:
        """Remove the positions from p0 on (up to p1); False if memory refuses."""
        return self.context.seq_rm(seq, p0, p1)

    def seq_cp(self, src: int, dst: int) -> None:
        """Copy a sequence."""
        self.context.seq_cp(src, dst, -1, -1)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move positions."""
        self.context.seq_add(seq, p0, p1, delta)

    def pos(self, seq: int = 0) -> tuple[int, int]:
        """The lowest and the highest position of a sequence."""
        return self.context.seq_pos_min(seq), self.context.seq_pos_max(seq)

    @property
    def state(self) -> Array:
        """State of the first recurrent layer for sequence 0, without its convolution."""
        recurrent = parts_of(self.context.memory)[1]
        if recurrent is None:
            raise TypeError("this memory has no recurrent state")
        shape = recurrent.shapes[0]
        row: Array = recurrent.planes.rows[shape.layer][recurrent.cells.tail[0]]
        return row[shape.conv :].copy()

    @property
    def used(self) -> int:
        """Number of used cells."""
        return sum(int((cache.streams.cells[0].pos >= 0).sum()) for _, cache in self._caches())

    def cells(self) -> list[tuple[str, str, str]]:
        """Position, letter and owners of each cell of the first cache; blank where it is free."""
        name, cache = self._caches()[0]
        cells, found = cache.streams.cells[0], []
        for i in range(cache.streams.size):
            owners = "".join(s for s in "01" if int(cells.bits[0, i]) >> int(s) & 1)
            label = self._labels[name, i].replace(" ", "_") if owners else ""
            found.append((str(cells.pos[i]) if owners else "", label, owners))
        return found

    def show(self) -> None:
        """Print the cells: position, letter, owners."""
        for name, cache in self._caches():
            cells, used = cache.streams.cells[0], range(cache.streams.size)
            owners = ["".join(s for s in "01" if int(cells.bits[0, i]) >> int(s) & 1) for i in used]
            held = [(i, owners[i] != "") for i in used]
            print_line(_row(f"{name}cell", [str(i) for i in used]))
            print_line(_row("position", [str(cells.pos[i]) if full else "" for i, full in held]))
            shown = [self._labels[name, i] if full else "" for i, full in held]
            print_line(_row("token", ["_" if letter == " " else letter for letter in shown]))
            if any("1" in owner for owner in owners):
                print_line(_row("owners", owners))

    def _caches(self) -> list[tuple[str, AttentionCache]]:
        caches = caches_of(parts_of(self.context.memory)[0])
        if len(caches) < 2:
            return [("", cache) for cache in caches.values()]
        found = [("non-SWA ", caches["attention"]), ("SWA ", caches["window"])]
        return [(name, cache) for name, cache in found if cache.layers]


def _row(name: str, words: Sequence[str]) -> str:
    return f"{name:<12}" + "".join(f"{word:>4}" for word in words).rstrip()


def same(one: Array, other: Array) -> bool:
    """True if both are equal bit for bit."""
    return bool(np.array_equal(one, other))


def apart(one: Array, other: Array) -> float:
    """Largest difference of two rows of logits, in two digits."""
    return float(f"{np.abs(one - other).max():.2g}")


def link(profile: str, toml: str, arithmetic: ArithmeticName) -> str:
    """A scenario on a profile as the fragment of a playground link."""
    named = Profile.parse(profile)
    form = {
        "name": "lesson",
        "engine": named.engine,
        "release": named.release,
        "patches": list(named.patches),
        "arithmetic": arithmetic,
        "toml": toml,
    }
    text = json.dumps(form, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answered request: cached tokens, verdict, memory afterwards."""

    prompt: str
    tokens: int
    cached: int
    processed: int
    answer: str
    off_by: float
    checkpoints: tuple[Saved, ...]
    entries: tuple[dict[str, Any], ...]
    why: tuple[dict[str, Any], ...]
    events: tuple[dict[str, Any], ...]
    reply: str = ""  # of a model that recalls facts
    error: str | None = None
    evidence: str | None = None
    again: Callable[[], Run] | None = field(default=None, repr=False, compare=False)

    def watched(self) -> Run:
        """The traced run of the request, recomputed."""
        if self.again is None:
            raise ContractError("this answer belongs to no run")
        return self.again()

    def link(self) -> str:
        """The run as the fragment of a playground link; empty without a run."""
        if not isinstance(self.again, partial):
            return ""
        mapping, named = self.again.args[0], self.again.keywords
        return link(named["profile"], to_toml(scenario_of(mapping)), "float")

    def seen(self, event: str) -> list[dict[str, Any]]:
        """Events of that name during the request."""
        return [entry for entry in self.events if entry["event"] == event]


Prompt = str | dict[str, Any]
"""A text, or a step of a scenario with letters in `prompt`, `reply` and `drafts`."""


def serve(
    profile: str, model: str, *prompts: Prompt, reply: str = "~", window: int = 0, **options: object
) -> list[Answered]:
    """Start a server, send it prompts in order, and verify each answer.

    The reply is given, one token unless said otherwise: so a slot holds just the prompt afterwards.
    """
    steps = [_step(prompt, reply) for prompt in prompts]
    entries, again = _played(profile, model, steps, window=window, options=options)
    texts = [letters(step["prompt"]) for step in steps]
    return [
        replace(_answered(text, step), again=again)
        for text, step in zip(texts, entries, strict=True)
    ]


def recall(profile: str, model: str, *prompts: str, **options: object) -> list[Answered]:
    """Prompts in words to a server with a model that recalls facts; each reply is one word."""
    steps = [{"prompt": list(encode(prompt)), "predict": 1} for prompt in prompts]
    entries, again = _played(profile, model, steps, options=options)
    return [
        replace(_answered(_short(text), step), again=again, reply=text_of(step.generated))
        for text, step in zip(prompts, entries, strict=True)
    ]


def _short(text: str) -> str:
    words = text.split()
    return text if len(words) < 12 else " ".join((*words[:7], "...", *words[-2:]))


def chat(
    profile: str,
    model: str,
    *turns: Sequence[str],
    reply: str = "~",
    together: bool = False,
    **options: object,
) -> list[Answered]:
    """Chats to a server: each is a system message, then user and assistant in turn."""
    texts = list(dict.fromkeys(text for turn in turns for text in turn))
    spans = {f"t{i}": list(tokens(text)) for i, text in enumerate(texts)}
    roles = ("system", *("user", "assistant") * max(map(len, turns)))
    steps: list[dict[str, Any]] = [
        {
            "messages": [
                {"role": role, "content": f"{{t{texts.index(text)}}}"}
                for role, text in zip(roles, turn, strict=False)
            ],
            "reply": list(tokens(reply)),
            "with_previous": together and i > 0,
        }
        for i, turn in enumerate(turns)
    ]
    entries, again = _played(profile, model, steps, spans=spans, options=options)
    names = [" | ".join(turn) for turn in turns]
    return [
        replace(_answered(name, step), again=again)
        for name, step in zip(names, entries, strict=True)
    ]


def _played(
    profile: str,
    model: str,
    steps: list[dict[str, Any]],
    *,
    options: dict[str, object],
    window: int = 0,
    spans: dict[str, list[Token]] | None = None,
) -> tuple[tuple[Played, ...], Callable[[], Run]]:
    mapping = {
        "format": 1,
        "name": "lesson",
        "model": {"preset": model} | ({"window": window} if window else {}),
        "engine": {"name": profile.partition("@")[0], "options": options},
        "spans": spans or {},
        "step": steps,
    }
    again = partial(run_scenario, mapping, profile=profile, detail=True)
    return run_scenario(mapping, profile=profile).steps, again


def _step(prompt: Prompt, reply: str) -> dict[str, Any]:
    step: dict[str, Any] = {"prompt": prompt} if isinstance(prompt, str) else dict(prompt)
    step.setdefault("reply", reply)
    for key in ("prompt", "reply"):
        if isinstance(step.get(key), str):
            step[key] = list(tokens(step[key]))
    if "drafts" in step:
        step["drafts"] = [list(tokens(draft)) for draft in step["drafts"]]
    return step


def _answered(prompt: str, step: Played) -> Answered:
    return Answered(
        prompt=prompt,
        tokens=step.size,
        cached=step.cached or 0,
        processed=step.processed or 0,
        answer=SHOWN.get(step.answer or "", ""),
        off_by=float(f"{step.max_difference or 0.0:.2g}"),
        checkpoints=step.checkpoints,
        entries=tuple(dict(entry) for entry in step.prompt_cache),
        why=tuple(loss.as_dict() for loss in step.why),
        events=tuple(event.as_dict() for event in step.events),
        error=step.error,
        evidence=step.evidence,
    )


def table(replies: Sequence[Answered], *, checkpoints: bool = False, entries: bool = False) -> None:
    """Print requests, one line each; with checkpoints or prompt-cache entries, if wanted.

    The evidence label of a release's wrong answers follows.
    """
    wide = max(8, *(len(answered.prompt) for answered in replies))
    more = "checkpoints" if checkpoints else "entries" if entries else ""
    more = more or ("reply" if any(answered.reply for answered in replies) else "")
    print_line(f"{'prompt':<{wide}}  tokens  cached  {'answer':<8}  {more}")
    for answered in replies:
        counts = f"{answered.tokens:>6}  {answered.cached:>6}"
        rest = [str(checkpoint) for checkpoint in answered.checkpoints] if checkpoints else []
        if entries:
            rest = [str(entry["n_tokens"]) for entry in answered.entries]
        if more == "reply":
            rest = [answered.reply]
        print_line(f"{answered.prompt:<{wide}}  {counts}  {answered.answer:<8}  {' '.join(rest)}")
    for label in dict.fromkeys(answered.evidence for answered in replies if answered.evidence):
        print_line(f"evidence: {label}")


def print_line(line: str = "") -> None:
    """Print a line without trailing spaces."""
    sys.stdout.write(f"{line.rstrip()}\n")
