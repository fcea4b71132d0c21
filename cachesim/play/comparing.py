"""A workload on several engines: tokens reused and lost, wrong answers, bytes held at the end.

rows      each names a profile, its options, and a model where the workload's is not meant
bound     what no cache can beat: all that a row's server computed before, but for the last token
          of the prompt; of each request the most of all rows
"""

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from cachesim.engines.base import Reply
from cachesim.engines.family import FAMILIES, Profile
from cachesim.engines.held import Held, sizes_of
from cachesim.errors import CachesimError, ScenarioError
from cachesim.files import readable
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.spec import ModelSpec
from cachesim.play.session import Session
from cachesim.scenario.format import Model, Scenario, Server
from cachesim.scenario.labels import Evidence, label_of, rules_of, weakest
from cachesim.typed import Json
from cachesim.verify.explain import IdealCache, lost_below
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import judge

BOUND: Final = "upper bound"

MESSAGES: Final = frozenset({"message_spans", "message_delimiters"})
"""Fields of a request that mark where messages begin: left out where a server has none."""

REFUSED: Final = "refused"
"""The cause of tokens that a refused request could have reused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A server: an engine at a release, with options; `model` replaces the workload's.

    The flags, slots and request fields of a scenario are those of its own engine; the row's options
    replace flags of the same name. `as_written`: they are kept on any engine, which refuses those
    that it does not have.
    """

    name: str
    profile: str
    options: Mapping[str, Any] = field(default_factory=dict)
    model: Model | None = None
    as_written: bool = False

    def keeps_flags(self, scenario: Scenario) -> bool:
        """True if the scenario's flags are this server's too."""
        return self.as_written or Profile.parse(self.profile).engine == scenario.engine.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The results of a row on the workload; `problem`: why it was not run, or answered nothing."""

    name: str
    cached: tuple[int | None, ...] = ()
    prompt_tokens: int = 0  # tokens of all prompts
    lost: Mapping[str, int] = field(default_factory=dict)  # cause -> tokens; up to the bound
    wrong: int | None = None  # answers that differ; None: not judged
    by_design: int | None = None  # answers that differ by design of the server
    bytes: int | None = None
    problem: str = ""
    evidence: Evidence | None = None  # of its wrong answers
    rules: str = ""  # whence its engine's rules are, if not from a comparison with it

    @property
    def reused(self) -> int | None:
        """Total of reused tokens; None where no request was answered."""
        known = [cached for cached in self.cached if cached is not None]
        return sum(known) if known else None

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON."""
        return {
            "name": self.name,
            "cached": list(self.cached),
            "reused": self.reused,
            "prompt_tokens": self.prompt_tokens,
            "lost": dict(self.lost),
            "wrong": self.wrong,
            "by_design": self.by_design,
            "bytes": self.bytes,
            "problem": self.problem or None,
            "evidence": self.evidence,
        }


def newest(*, releases: bool = False) -> tuple[Row, ...]:
    """Every engine at its newest release, or at each release, with its defaults."""
    rows = []
    for family in FAMILIES.values():
        chosen = family.releases if releases else family.releases[-1:]
        rows += [
            Row(name=f"{family.name}@{release.name}", profile=f"{family.name}@{release.name}")
            for release in chosen
        ]
    return tuple(rows)


def compare(
    scenario: Scenario,
    rows: Iterable[Row],
    *,
    arithmetic: ArithmeticName = "ring",
    verify: bool = True,
) -> Iterator[Compared]:
    """Run the workload on each row; the upper bound of all rows comes first."""
    played = [_play(scenario, row, arithmetic, verify=verify) for row in rows]
    answered = [answer for answer in played if isinstance(answer, _Played)]
    bound = tuple(map(_most, zip_longest(*(answer.due for answer in answered))))
    lengths = zip_longest(*(answer.lengths for answer in answered), fillvalue=0)
    if answered:
        yield Compared(name=BOUND, cached=bound, prompt_tokens=sum(map(max, lengths)))
    for outcome in played:
        yield outcome.against(bound) if isinstance(outcome, _Played) else outcome


def _most(counts: Iterable[int | None]) -> int | None:
    return max((count for count in counts if count is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """A row's reply to each request with its earlier tokens; None for a refusal."""

    name: str
    replies: tuple[Reply | None, ...]
    due: tuple[int | None, ...]
    wrong: int | None
    by_design: int | None
    bytes: int | None
    refusal: str  # of the first request that was refused
    evidence: Evidence | None
    rules: str

    @property
    def lengths(self) -> tuple[int, ...]:
        """Prompt lengths of the answered requests."""
        return tuple(0 if reply is None else len(reply.prompt) for reply in self.replies)

    @property
    def problem(self) -> str:
        """Why no request was answered; empty if one was."""
        if any(self.replies) or not self.refusal:
            return ""
        return f"no request was answered; the first one: {self.refusal}"

    def against(self, bound: Sequence[int | None]) -> Compared:
        """Tokens reused, and the rest up to the bound by cause."""
        lost: Counter[str] = Counter()
        for reply, most in zip_longest(self.replies, bound):
            lost += Counter({REFUSED: most or 0}) if reply is None else lost_below(reply, most or 0)
        return Compared(
            name=self.name,
            cached=tuple(None if reply is None else reply.cached for reply in self.replies),
            prompt_tokens=sum(self.lengths),
            lost=lost,
            wrong=self.wrong,
            by_design=self.by_design,
            bytes=self.bytes,
            problem=self.problem,
            evidence=self.evidence,
            rules=self.rules,
        )


def _play(
    scenario: Scenario, row: Row, arithmetic: ArithmeticName, *, verify: bool
) -> _Played | Compared:
    profile = Profile.parse(row.profile)
    changed = served_by(scenario, row)
    try:
        session = Session(changed, profile, arithmetic=arithmetic, reads_state=False)
        return _run(row.name, session, verify=verify and arithmetic != "counts")
    except ScenarioError as error:
        problem = error.problems[0]
        if row.as_written and profile.engine != scenario.engine.name:
            problem = f"{problem.partition(';')[0]}; --row {row.name}: with flags of its own"
        return Compared(name=row.name, problem=problem)
    except CachesimError as error:
        return Compared(name=row.name, problem=str(error))


def served_by(scenario: Scenario, row: Row) -> Scenario:
    """The scenario with the row's server and model instead of its own."""
    profile = Profile.parse(row.profile)
    keeps, model, steps = row.keeps_flags(scenario), scenario.model, scenario.step
    if row.model is not None:  # the tokens of the prompts are drawn by seed and vocabulary
        model = replace(row.model, seed=model.seed, vocabulary=model.vocabulary)
    if not keeps:
        family = FAMILIES[profile.engine]
        unknown = MESSAGES - {
            option.name for option in family.fields if family.has(option, profile)
        }
        steps = tuple(
            replace(
                step, slot=-1, options={n: v for n, v in step.options.items() if n not in unknown}
            )
            for step in steps
        )
    server = Server(
        name=profile.engine,
        profiles=(str(profile).partition("@")[2],),
        options={**(scenario.engine.options if keeps else {}), **row.options},
    )
    return replace(scenario, engine=server, model=model, step=steps, expect=())


def _run(name: str, session: Session, *, verify: bool) -> _Played:
    oracle, ideal, refusal, by_design = Oracle(session.network), IdealCache(), "", 0
    replies: list[Reply | None] = []
    due: list[int | None] = []
    wrong = list[str]()
    for record in session.run():
        if record.step.do != "complete":
            continue
        reply = record.reply
        if reply is None or reply.error is not None or not reply.prompt:
            replies.append(None)
            due.append(None)
            refusal = refusal or record.message or record.error or ""
            continue
        replies.append(reply)
        due.append(max(int(ideal.due(reply)), int(reply.cached or 0)))
        ideal.remember(reply)
        if verify:
            verdict = judge(reply, oracle)
            answer = verdict and verdict.answer
            wrong += [record.name] if answer == "diverged" else []
            by_design += answer == "by-design"
    return _Played(
        name=name,
        replies=tuple(replies),
        due=tuple(due),
        wrong=len(wrong) if verify else None,
        by_design=by_design if verify else None,
        refusal=refusal,
        bytes=_bytes_of(session.engine.held(), session.network.spec),
        rules=rules_of(session.profile.engine),
        evidence=weakest(label_of(session.scenario, session.profile, step) for step in wrong),
    )


def _bytes_of(held: Held, spec: ModelSpec) -> int | None:
    """Bytes of an engine: keys and values in half precision, states in single, saved entries.

    None for an engine that does not report its memory.
    """
    if held == Held():
        return None
    attention, window, state = sizes_of(spec)
    token = {"attention": attention, "window": window}
    cells = sum(token[part.part] * sum(r.count for r in part.runs) for part in held.cells)
    rows = state * len(held.rows)
    saved = sum(state for slot in held.slots for _ in slot.checkpoints)
    return cells + rows + saved + sum(entry.size for entry in held.entries)


KEYS: Final = {"name", "profile", "model", "options"}
MODEL_KEYS: Final = {"preset", "window"}


def policies() -> tuple[Row, ...]:
    """The shipped rows."""
    text = files(__package__).joinpath("policies.toml").read_text(encoding="utf-8")
    return read(text, "policies.toml")


def rows_in(path: Path) -> tuple[Row, ...]:
    """The rows of a user's file."""
    with readable(path, ScenarioError):
        text = path.read_text(encoding="utf-8")
    return read(text, str(path))


def read(text: str, name: str) -> tuple[Row, ...]:
    """All rows, or the errors of each."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{name}: {error}") from error
    given = content.get("row")
    if not isinstance(given, list) or not given or set(content) != {"row"}:
        msg = f"{name}: write one or more [[row]] with name and profile, and nothing else"
        raise ScenarioError(msg)
    problems = [
        f"{name}: row {number}: {problem}"
        for number, line in enumerate(given, 1)
        if (problem := _problem(line))
    ]
    if problems:
        raise ScenarioError(*problems)
    return tuple(_row(line) for line in given)


def _problem(given: Json) -> str:
    if not isinstance(given, dict):
        return "write a table"
    for key in ("name", "profile"):
        if not isinstance(given.get(key), str):
            return f"{key} is missing: write a text"
    unknown = set(given) - KEYS
    if unknown:
        return f"there is no {min(unknown)!r}; there are {', '.join(sorted(KEYS))}"
    model, options = given.get("model", {}), given.get("options", {})
    if not isinstance(options, dict):
        return "options is no table: write {flag = value}"
    known = isinstance(model, dict) and not set(model) - MODEL_KEYS
    return "" if known else "model takes preset and window: write {preset = 'hybrid'}"


def _row(given: dict[str, Any]) -> Row:
    model = Model(**given["model"]) if "model" in given else None
    return Row(
        name=given["name"], profile=given["profile"], options=given.get("options", {}), model=model
    )
