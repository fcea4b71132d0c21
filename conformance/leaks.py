"""`python -m conformance.leaks`: every shipped wrong answer again, with a model that recalls facts.

Each prompt and reply of a scenario is rewritten: tokens become fillers, a fact stands at one
position of all texts, or of the others' alone, and the step with the wrong answer asks for it.
Lengths and common prefixes stay, so that the defect does. Positions are tried in order, those of
the wrong memory first; the best outcome counts:

    leak            the reply is a value that only other requests contained
    wrong text      the reply is another one than that of an uncached run
    unchanged       logits differ, the reply does not
    not reproduced  no rewritten scenario has a wrong answer

The table is kept in `docs/leaks.csv`. `--real` plays the leaks that have no label yet on the real
servers; `--all` searches again where the scenario has not changed either.
"""

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Final

from rich.console import Console

from cachesim.engines import FAMILIES
from cachesim.engines.family import Profile
from cachesim.errors import CachesimError
from cachesim.model import recall
from cachesim.model.presets import RECALL
from cachesim.model.spec import FIRST_PLAIN
from cachesim.play import run
from cachesim.play.session import Session, groups_of
from cachesim.prove.playing import StepPlayed
from cachesim.scenario import Scenario, full_profile, load
from cachesim.scenario.format import Model, Shows, Step, Turn
from cachesim.scenario.labels import CONFIRMED, SOURCE, digest, label_of
from cachesim.scenario.shipped import shipped_file, shipped_files
from cachesim.testing.facts import Tree
from cachesim.typed import there_is
from cachesim.units import Tokens, as_tokens
from cachesim.verify.oracle import Oracles
from cachesim.verify.verdict import leak_of
from conformance.wheel_scenarios import PLAYERS

TABLE: Final = Path(__file__).parents[1] / "docs" / "leaks.csv"
OUTCOMES: Final = ("not reproduced", "unchanged", "wrong text", "leak")
TRIALS: Final = 100
SPREAD: Final = 8
REPLIED: Final = (2, 4)
"""Tokens of a reply before a question's answer, where none differs earlier."""
OTHER_TEXT: Final = "wrong on the real engine, with another text"
OUT: Final = Console(highlight=False, soft_wrap=True)
ORACLES: Final = Oracles()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One scenario on one profile."""

    defect: str  # the report that it comes from
    engine: str
    profile: str
    scenario: str
    outcome: str
    reply: str
    cold: str
    source: str  # the requests that contained the value
    why: str  # why it is no leak
    evidence: str
    step: str
    place: str  # of fact and question
    file: str  # the scenario: the beginning of its digest

    def __str__(self) -> str:
        return f"{self.scenario}-{self.profile}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A model, and the positions of the fact's value and of the question."""

    model: str
    value: int
    cut: int = 0  # length of the asking prompt; 0: as it is
    asks: int = -1  # the question's index in the reply; -1: at the end of the prompt
    others: bool = False  # the asking prompt has no such value

    def __str__(self) -> str:
        return f"{self.model} {self.value} {self.cut} {self.asks} {int(self.others)}"

    @classmethod
    def parse(cls, text: str) -> "Place":
        model, *numbers = text.split()
        value, cut, asks, others = map(int, numbers)
        return cls(model=model, value=value, cut=cut, asks=asks, others=bool(others))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a rewritten scenario."""

    word: str = OUTCOMES[0]
    reply: str = ""
    cold: str = ""
    source: str = ""


class Original:
    """A scenario on one profile: the tokens of its requests, and its wrong answers.

    `wrong` holds the memory that caused each, `rows` the first generated token that differs.
    """

    def __init__(self, scenario: Scenario, profile: Profile) -> None:
        self.scenario, self.profile = scenario, profile
        self.session = Session(scenario, profile, arithmetic="ring", reads_state=False)
        self.records = list(self.session.run())

        steps = run(scenario, profile, arithmetic="ring").steps
        accounts = {
            number: step.explanation
            for number, step in enumerate(steps)
            if step.answer == "diverged"
        }
        self.wrong = {
            number: None if account is None else account.fault
            for number, account in accounts.items()
        }
        self.rows = {
            number: account.wrong.step if account and account.wrong else 0
            for number, account in accounts.items()
        }

    def text(self, index: int) -> tuple[Tokens, Tokens]:
        record = self.records[index]
        if record.step.reply is not None:
            return record.prompt, self.session.vocabulary.tokens(record.step.reply)
        return record.prompt, record.reply.generated if record.reply else ()

    def rewritten(self, index: int, words: Sequence[int]) -> tuple[Turn, ...] | None:
        """The messages of a step with other words; None where its template drops some."""
        record, vocabulary = self.records[index], self.session.vocabulary
        turns, messages = [], vocabulary.messages(record.step.messages)
        starts = [part.start for part in vocabulary.parts(record.step, record.prompt)]
        starts = starts[len(starts) - len(messages) :]
        for message, start in zip(messages, starts, strict=True):
            old = vocabulary.tokenizer.encode(message.content)
            places = range(start, len(record.prompt) - len(old) + 1)
            at = next((at for at in places if record.prompt[at : at + len(old)] == old), None)
            if at is None:
                return None
            text = (
                recall.TEXTS.get(word) or vocabulary.tokenizer.decode(as_tokens([word]))
                for word in words[at : at + len(old)]
            )
            turns.append(Turn(role=message.role, content="".join(text)))
        return tuple(turns)


def models_of(scenario: Scenario) -> tuple[str, ...]:
    """The models that recall facts from the same kind of memory.

    llama.cpp's Granite class takes no state as large as that of recall-hybrid.
    """
    name = f"recall-{(scenario.model.preset or '').removeprefix('recall-')}"
    if name == "recall-hybrid" and scenario.engine.name == "llama.cpp":
        return "recall-hybrid-delta", name
    return (name,) if name in RECALL else ()


def filler(token: int) -> int:
    """Bytes and marks stay; other tokens become words without a meaning."""
    plain = token < FIRST_PLAIN
    return token if plain else recall.FIRST_FILLER + token % len(recall.FILLERS)


def words_of(tree: Tree, facts: dict[int, int]) -> dict[int, int]:
    """A word for each node; siblings differ."""
    words = dict(facts)
    for after in tree.children.values():
        taken = {words[child] for child in after.values() if child in words}
        for token, child in after.items():
            if child not in words:
                word = filler(token)
                while word in taken and len(taken) < len(recall.FILLERS):
                    word = filler(word + 1)
                words[child] = word
                taken.add(word)
    return words


def facts_at(
    paths: dict[int, list[int]], asking: int, end: int, place: Place
) -> dict[int, int] | None:
    """The nodes of fact and question; None where they overlap."""
    facts: dict[int, int] = {}
    own, values = paths[asking], 0
    for path in paths.values():
        if place.value >= len(path) or path[place.value] in facts:
            continue
        if place.others and path[place.value] in own:
            continue
        facts[path[place.value - 1]] = recall.FIRST_NAME
        facts[path[place.value]] = recall.FIRST_VALUE + values * 37 % recall.VALUES
        values += 1
    at = end - 2 if place.asks < 0 else end + place.asks
    if not facts or at < 0 or at + 2 > len(own) or facts.keys() & set(own[at : at + 2]):
        return None
    return facts | {own[at]: recall.FIRST_NAME, own[at + 1]: recall.ASK}


def twin(original: Original, asking: int, place: Place) -> Scenario | None:
    """The scenario up to its wrong answer, with a fact and a question."""
    scenario, given = original.scenario, original.scenario.model
    model = Model(
        preset=place.model,
        seed=given.seed,
        window=given.window,
        chunked=given.chunked,
        sizes=given.sizes,
        family=given.family,
    )
    last = next(group[-1] for group in groups_of(scenario) if asking in group)
    texts = {
        index: original.text(index)
        for index, step in enumerate(scenario.step)
        if step.do == "complete"
    }
    if place.cut:
        texts[asking] = texts[asking][0][: place.cut], ()
    tree = Tree()
    paths = {index: tree.path((*prompt, *reply)) for index, (prompt, reply) in texts.items()}
    facts = facts_at(paths, asking, len(texts[asking][0]), place)
    if facts is None:
        return None
    words = words_of(tree, facts)
    steps = []
    for index, step in enumerate(scenario.step[: last + 1]):
        if index in texts:
            line = [words[node] for node in paths[index]]
            made = _worded(original, index, line, texts[index])
            if made is None:
                return None
            if index == asking and place.asks < 0 and not step.drafts:
                made = replace(made, reply=None, predict=len(texts[index][1]) or 1)
            steps.append(made)
        else:
            steps.append(step)
    return replace(scenario, model=model, spans={}, step=tuple(steps), expect=(), shows=Shows())


def _worded(
    original: Original, index: int, line: Sequence[int], text: tuple[Tokens, Tokens]
) -> Step | None:
    step, (prompt, reply) = original.scenario.step[index], text
    said = dict(zip(reply, line[len(prompt) :], strict=True))
    drafts = original.session.request(original.records[index]).drafts
    made = replace(
        step,
        reply=tuple(line[len(prompt) :]) or None,
        predict=None if reply else step.predict,
        drafts=step.drafts
        and tuple(
            tuple(said.get(token, filler(token)) for token in draft) for draft in drafts or ()
        ),
    )
    if not step.messages:
        return replace(made, prompt=tuple(line[: len(prompt)]))
    turns = original.rewritten(index, line)
    return None if turns is None else replace(made, messages=turns)


def outcome_of(scenario: Scenario, profile: Profile, asking: int) -> Outcome:
    """The reply of the asking step beside the cold one."""
    session = Session(scenario, profile, arithmetic="float", reads_state=False)
    oracle = ORACLES.of(session.network)
    records = list(session.run())
    reply = records[asking].reply
    if reply is None or reply.error is not None or not reply.generated:
        return Outcome()
    cold = oracle.logits(reply.prompt, reply.generated, reply.strengths)
    if cold.tobytes() == reply.logits.tobytes():
        return Outcome()
    others = [(record.name, record.tokens) for record in records if record.index != asking]
    if leak := leak_of(reply, oracle, others):
        return Outcome(word="leak", reply=leak.text, cold=leak.cold, source=" ".join(leak.requests))
    pairs = list(zip(reply.logits.argmax(axis=1), cold.argmax(axis=1), strict=True))
    warm, right = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    word = "unchanged" if warm == right else "wrong text"
    texts = (recall.text_of((int(token),)) for token in (warm, right))
    return Outcome(word=word, **dict(zip(("reply", "cold"), texts, strict=True)))


def places(original: Original, asking: int, model: str) -> Iterator[Place]:
    """Positions of fact and question, those of the wrong memory first."""
    fault, prompt = original.wrong[asking], original.records[asking].prompt
    cuts, values = [0], list[int]()
    if fault is not None:
        ends = (fault.matches, fault.position, fault.holds_tokens - 2, fault.expected_tokens - 2)
        values = [end + near for end in ends for near in (0, 1, 2, -1)]
        if fault.place != "recurrent":  # the end of the prompt may not see that far back
            behind = (fault.read_by + near for near in (1, 2, 3))
            cuts += [cut for cut in (*behind, fault.position + 20) if 2 < cut < len(prompt)]
    longest = max(len(record.prompt) for record in original.records)
    values += range(1, longest, max(1, longest // SPREAD))
    questions = [(cut, -1) for cut in cuts if not original.scenario.step[asking].messages]
    questions += [(0, max(0, at - 2)) for at in (original.rows[asking], *REPLIED)]
    if original.rows[asking] > 1:
        questions.sort(key=lambda question: question[1] != original.rows[asking] - 2)
    for cut, asks in questions:
        for value in dict.fromkeys(value for value in values if value > 0):
            for others in (False, True):
                yield Place(model=model, value=value, cut=cut, asks=asks, others=others)


def tried(original: Original, asking: int, place: Place) -> Outcome | None:
    """The outcome of one place; None where the scenario cannot be rewritten so."""
    try:
        scenario = twin(original, asking, place)
        return None if scenario is None else outcome_of(scenario, original.profile, asking)
    except CachesimError:
        return None


def best(original: Original) -> tuple[Outcome, int, Place | None]:
    """The best outcome of all wrong steps and places, with its step and place."""
    found: tuple[Outcome, int, Place | None] = Outcome(), next(iter(original.wrong)), None
    for model, asking in product(models_of(original.scenario), original.wrong):
        left, fault = TRIALS // len(original.wrong), original.wrong[asking]
        foreign = fault is not None and fault.holds is not None
        enough = ("leak",) if foreign else ("leak", "wrong text")
        for place in places(original, asking, model):
            outcome = tried(original, asking, place)
            left -= outcome is not None
            if outcome and OUTCOMES.index(outcome.word) > OUTCOMES.index(found[0].word):
                found = outcome, asking, place
            if found[0].word in enough or not left:
                break
    return found


def why_not(original: Original, asking: int, outcome: Outcome) -> str:
    """Why a wrong answer is no leak, from the memory that caused it."""
    fault = original.wrong[asking]
    if outcome.word == "leak":
        return ""
    if not models_of(original.scenario):
        return "no recall model has such layers"
    if fault is None:
        return "own tokens, computed with other adapters"
    if fault.padding or fault.holds == 0:
        return "padding in the memory"
    if fault.holds is None:
        if fault.place != "recurrent":
            return "keys missing, none foreign"
        return "tokens missing from the state" if fault.holds_tokens else "state blank"
    prompt, foreign = original.records[asking].prompt, fault.holds_tokens - fault.matches
    near = prompt[max(0, fault.matches - 1) : fault.matches + 1]
    if fault.holds in near or fault.comes_from is None:
        return "own tokens twice or displaced"
    if foreign == 1 and fault.place != "attention":
        return "one foreign token, a fact has two"
    return "foreign tokens, no fact is read from them"


def row_of(file: Path, text: str, like: Row | None = None) -> Row | None:
    """The row of a scenario and a profile; None where no answer is wrong.

    `like`, that of another profile: its place is taken where the outcome is the same.
    """
    scenario = load(file)
    profile = full_profile(scenario.engine.name, text)
    original, outcome = Original(scenario, profile), None
    place: Place | None
    if not original.wrong:
        return None
    if like is not None and like.place:
        asking, place = scenario.step_names.index(like.step), Place.parse(like.place)
        outcome = tried(original, asking, place) if asking in original.wrong else None
    if outcome is None or outcome.word != there_is(like).outcome:
        outcome, asking, place = best(original)
    return Row(
        defect=scenario.source.issue,
        engine=scenario.engine.name,
        profile=text,
        scenario=file.stem,
        outcome=outcome.word,
        reply=outcome.reply,
        cold=outcome.cold,
        source=outcome.source,
        why=why_not(original, asking, outcome),
        evidence=label_without_run(scenario, profile, scenario.step_names[asking]),
        step=scenario.step_names[asking],
        place="" if place is None else str(place),
        file=digest(scenario),
    )


def label_without_run(scenario: Scenario, profile: Profile, step: str) -> str:
    """The evidence for a reply that no real engine gave: at most that of the wrong state."""
    label = label_of(scenario, profile, step)
    return (SOURCE if label == CONFIRMED else label) or ""


def again(row: Row) -> Outcome:
    scenario = load(shipped_file(row.scenario))
    original = Original(scenario, full_profile(row.engine, row.profile))
    asking = scenario.step_names.index(row.step)
    if not row.place:
        return best(original)[0]
    return tried(original, asking, Place.parse(row.place)) or Outcome()


def label_of_run(row: Row) -> str:
    """The label of a row whose scenario is played on the real server, where that is possible."""
    scenario = load(shipped_file(row.scenario))
    original = Original(scenario, full_profile(row.engine, row.profile))
    asking = scenario.step_names.index(row.step)
    rewritten = there_is(twin(original, asking, Place.parse(row.place)))
    try:
        step: StepPlayed = PLAYERS[row.engine](rewritten, row.profile, proves=True)[asking]
    except CachesimError as error:
        OUT.print(str(error)[:160])
        return row.evidence
    OUT.print(step.words)
    if not step.confirmed:
        return row.evidence
    texts = (f'replied "{row.reply}', f'replies "{row.cold}')
    (value,) = recall.encode(row.reply)  # a forced reply hides it
    tops = (max(each, key=each.__getitem__, default=-1) for each in getattr(step.real, "top", ()))
    leaked = all(text in step.words for text in texts) or value in tops
    return CONFIRMED if leaked else OTHER_TEXT


def read() -> list[Row]:
    if not TABLE.is_file():
        return []
    with TABLE.open(newline="", encoding="utf-8") as table:
        return [Row(**each) for each in csv.DictReader(table)]


def write(rows: Sequence[Row]) -> None:
    with TABLE.open("w", newline="", encoding="utf-8") as table:
        writer = csv.DictWriter(table, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            asdict(row) for row in sorted(rows, key=lambda each: (each.scenario, each.profile))
        )


def main(arguments: Sequence[str]) -> int:
    """Search where a scenario is new; 2 for a wrong word."""
    if unknown := set(arguments) - {"--all", "--real"}:
        OUT.print(f"unknown: {' '.join(unknown)}; there are --all, --real")
        return 2
    before = {(each.scenario, each.profile, each.file): each for each in read()}
    rows: dict[tuple[str, str, str], Row] = {}
    for file in shipped_files():
        scenario = load(file)
        if "diverged" not in str(scenario.expect):
            continue
        like = None
        for text in scenario.engine.profiles:
            key = file.stem, text, digest(scenario)
            row = before.get(key)
            if row is None or "--all" in arguments:
                row = row_of(file, text, like)
            if row is not None:
                OUT.print(f"{row.outcome:14} {file.stem} {text} {row.reply} {row.why}")
                rows[key] = like = row
                write([*(before | rows).values()])
    if "--real" in arguments:
        for key, row in rows.items():
            rows[key] = played(row)
            write([*rows.values()])
    write([*rows.values()])
    return 0


def played(row: Row) -> Row:
    """The row with its label, if it is a leak that a real server can show."""
    real = FAMILIES[row.engine].real() if row.engine in PLAYERS else ()
    if row.outcome != "leak" or row.evidence == CONFIRMED or row.profile not in real:
        return row
    OUT.print(f"{row.scenario} {row.profile}")
    return replace(row, evidence=label_of_run(row))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
