"""A scenario on the real mlx-lm of its release, with the simulator beside it.

The real server reads the scenario's tokens as words: one token, one word, marks as marks. Its model
is a tiny one of the class that the scenario names, and says what the simulator said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from cachesim.engines.chat import VOCABULARY, ByteTokenizer
from cachesim.engines.family import Profile
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.server import word_tokenizer
from cachesim.errors import CachesimError
from cachesim.play.session import Record, Session, groups_of
from cachesim.prove.hunt.proof import ProofResult, Prover, refuted_by, result_of, step_of
from cachesim.prove.mlx_lm.fitting import fits, playable_families
from cachesim.prove.mlx_lm.process import environment_for
from cachesim.prove.mlx_lm.server import RealMlxServer
from cachesim.prove.playing import StepPlayed, in_words
from cachesim.scenario.format import Scenario
from cachesim.typed import there_is
from cachesim.units import Token, Tokens
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import SHOWN, judge

if TYPE_CHECKING:
    from cachesim.testing.search import Counterexample

Outcome: TypeAlias = tuple[int | None, str | None, str | None]
"""Cached tokens, the answer, the error."""

MARKS: Final = {
    259: "<|im_start|>",
    260: "<|im_end|>",
    261: "system",
    262: "user",
    263: "assistant",
    264: "\n",
}
THINK_MARKS: Final = {510: "<think>", 511: "</think>"}
FILLER: Final = 300


def play_mlx_scenario(scenario: Scenario, release: str) -> tuple[StepPlayed, ...]:
    """Run a scenario on the simulator, then on the real server with the same replies."""
    families = playable_families(scenario)
    session = Session(scenario, Profile(FAMILY.name, release))
    records = list(session.run())
    oracles = {name: Oracle(network) for name, network in session.networks.items()}
    words = Words(session.vocabulary.tokenizer)
    with RealMlxServer(release) as real:
        packs = "kv_bits" in scenario.engine.options
        models = {
            name: {"family": families[name], **words.numbers(session)}
            | ({"window": network.spec.window} if network.spec.window else {})
            | ({"head_size": network.spec.head_size} if packs else {})
            for name, network in session.networks.items()
        }
        line = real.play(
            {
                "id": scenario.name,
                "version": release,
                "model": models.pop(""),
                "models": models,
                "template": scenario.chat.template,
                "vocabulary": words.size,
                "options": dict(scenario.engine.options),
                "steps": [
                    [words.request(records[index], session) for index in group]
                    for group in groups_of(scenario)
                ],
            }
        )
    played = [request for group in line["results"] for request in group["requests"]]
    steps = (
        _step_played(record, theirs, _outcome(record, oracles[record.step.model]))
        for record, theirs in zip(records, played, strict=False)
    )
    return tuple(
        replace(step, words=_in_words(step, theirs, records, words))
        for step, theirs in zip(steps, played, strict=False)
    )


def _in_words(
    step: StepPlayed, theirs: Mapping[str, Any], records: Sequence[Record], words: "Words"
) -> str:
    """The wrong reply of a step as text, token by token as greedy sampling gives it."""
    if "sampled" not in theirs or theirs["answer"] != "diverged":
        return ""
    reply, cold = (words.tokens(theirs[way]) for way in ("sampled", "cold"))
    at = next((i for i, pair in enumerate(zip(reply, cold, strict=True)) if len(set(pair)) > 1), 0)
    prompt = next(record.prompt for record in records if record.name == step.name)
    others = [(record.name, record.tokens) for record in records if record.name != step.name]
    return in_words(step.name, reply, cold, at, prompt=prompt, earlier=others)


def _step_played(record: Record, theirs: Mapping[str, Any], simulated: Outcome) -> StepPlayed:
    answer, error = theirs["answer"], theirs["error"]
    real: Outcome = (None if error else theirs["cached"], answer, error)
    return StepPlayed(
        name=record.name,
        prompt_tokens=len(record.prompt),
        real=real,
        simulated=simulated,
        agrees=real == simulated,
        confirmed=answer == "diverged" or (error is not None and real == simulated),
        cells=tuple(
            text
            for cached, answer, error in (real, simulated)
            for text in (error or str(cached), answer or "-")
        ),
    )


def _outcome(record: Record, oracle: Oracle) -> Outcome:
    reply = record.reply
    if reply is None or reply.error is not None or not reply.generated:
        return None, None, record.error
    same = there_is(judge(reply, oracle)).answer in {"same", "rounding"}
    return reply.cached, "same" if same else "diverged", None


class Words:
    """The byte tokenizer's tokens as words of the real server's tokenizer."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self.tokenizer = tokenizer
        thinks = tokenizer.template.thinks
        self._marks = MARKS | (THINK_MARKS if thinks else {})
        order = word_tokenizer.MARKS + tuple(THINK_MARKS.values()) * thinks
        self._first = len(order)
        self._ids = {mark: index for index, mark in enumerate(order)}
        self.size = self._first + VOCABULARY

    def text(self, tokens: Sequence[int]) -> str:
        return " ".join(self._marks.get(token, f"w{token}") for token in tokens)

    def ids(self, tokens: Sequence[int]) -> list[int]:
        """Tokens as the real tokenizer numbers their words."""
        marks = ((self._marks.get(token), token) for token in tokens)
        return [self._first + token if mark is None else self._ids[mark] for mark, token in marks]

    def tokens(self, ids: Sequence[int]) -> Tokens:
        """Tokens of words; those that no prompt has are none."""
        known = {number: Token(index) for index, number in enumerate(self.ids(range(VOCABULARY)))}
        return tuple(known.get(number, Token(0)) for number in ids)

    def numbers(self, session: Session) -> dict[str, Any]:
        """The real number of each token, which constructed weights depend on."""
        recalls = session.network.spec.recall
        return {"ids": self.ids(range(VOCABULARY))} if recalls else {}

    def request(self, record: Record, session: Session) -> dict[str, Any]:
        """A step as a request to the real server, with the simulator's reply."""
        step = session.request(record)
        reply = () if record.reply is None else record.reply.generated
        forced, fields = step.reply, step.options or {}
        drafts = "draft_model" in session.scenario.engine.options
        goes_on = drafts or "stop_words" in fields  # else the end of the sampled tokens ends it
        predict = step.predict if forced is None or goes_on else min(step.predict, len(forced))
        limit = max(predict, len(reply))
        request: dict[str, Any] = {
            "max_tokens": limit,
            "reply": self.ids([*reply, *[FILLER] * (limit - len(reply))]),
            **fields,
            **({"model": step.model} if step.model else {}),
        }
        if "tools" in request:
            request["tools"] = [self.text(self.tokenizer.encode("\n".join(request["tools"])))]
        if drafts:
            request["drafts"] = [self.ids(draft) for draft in step.drafts or ()]
        if step.messages:
            request["messages"] = [
                {"role": message.role, "content": self.text(self.tokenizer.encode(message.content))}
                for message in step.messages
            ]
        else:
            request["text"] = self.text(step.prompt)
        return request


def _proven_on_the_package(found: "Counterexample", profile: Profile) -> ProofResult:
    """Run it on mlx-lm's own server, and compare its answer with the model's uncached one."""
    try:
        played = play_mlx_scenario(found.scenario, profile.release)
    except CachesimError as error:
        return ProofResult(confirmed=False, seen=str(error))
    if refuted := refuted_by(played):
        return refuted
    cached, answer, refusal = step_of(found, played).real
    return result_of(
        found,
        played,
        wrong=answer == "diverged",
        ended=refusal is not None,
        cached=cached,
        seen=refusal or f"{cached} cached, {SHOWN.get(answer or '', answer)}",
    )


PROVER: Final = Prover(
    where="the real package",
    models=("swa", "recurrent", "hybrid", "hybrid-delta"),
    kinds=("long reply",),
    sizes=((16, 12), (8, 80), (16, 12)),
    fits=fits,
    prove=_proven_on_the_package,
    ready=lambda release: environment_for(release).ready(),
)
