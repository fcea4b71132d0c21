"""Recorded requests one by one: the common prefix with earlier ones, and the reason for
reprocessing.

The recorder feeds it while traffic flows, `cachesim why` feeds it a whole file; both print the
same.

    request ──> the earlier one it continues ──> where it parts (the client's doing)
                        └──> rope ──> replay ──> the rule that lowered the number (the engine's)
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final

from cachesim.engines.causes import Loss
from cachesim.engines.family import Profile, family_of
from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.model.presets import PRESETS, preset
from cachesim.why.explain.answer import answer_of
from cachesim.why.explain.divergence import (
    SYSTEM,
    Candidate,
    Divergence,
    Kin,
    divergence_of,
    kin_of,
)
from cachesim.why.explain.remedies import remedy_of
from cachesim.why.explain.report import FORMAT
from cachesim.why.explain.rewrites import CONVERSATIONS
from cachesim.why.explain.whole import UserSettings
from cachesim.why.infer.settings import kind_of
from cachesim.why.read.dump import Recorded
from cachesim.why.read.segments import BLOCK
from cachesim.why.read.slot_actions import ADVICE, SLOT_TAKEN, SlotAction, Slots
from cachesim.why.rebuild.from_recording import (
    Rerun,
    field_of,
    full_name,
    known,
    opened,
    options_in,
    others,
    profile_of,
    split_of,
)
from cachesim.why.rebuild.from_recording import elsewhere as played_elsewhere
from cachesim.why.rebuild.prompts import Prompt, Prompts
from cachesim.why.replay.player import FAILED, Replayed

RETOKENISED: Final = "reply-retokenised"
KEEP_TOKENS: Final = (
    "Nothing in the text: it is unchanged. `/completion` with `return_tokens` returns the sampled "
    "tokens, and takes them as a prompt."
)


@dataclass(frozen=True, slots=True)
class Understood:
    """A request, with its relation to earlier ones."""

    prompt: Prompt
    kin: Kin
    continues: Recorded | None
    earlier: Prompt | None  # the prompt of the one that it continues
    divergence: Divergence | None
    taken: SlotAction | None = None  # what took the one that it continues out of its slot


def entry_of(understood: Understood, played: Replayed) -> dict[str, Any]:
    """The entry of a request: the server's numbers, the replay's, and their difference."""
    prompt, kin, divergence = understood.prompt, understood.kin, understood.divergence
    request = prompt.recorded
    total = len(prompt.rope) if request.prompt_tokens is None else request.prompt_tokens
    agrees = None if request.cached is None else played.cached == request.cached
    equal = played.equal if agrees and prompt.how == "computed" else 0
    again, changed = _again_of(understood, equal)
    found: dict[str, Any] = {
        "number": request.number,
        "line": request.line,
        "prompt_tokens": request.prompt_tokens,
        "cached": request.cached,
        "processed": request.processed,
        "slot": request.slot,
        "cancelled": request.cancelled,
        "continues": number_of(understood.continues),
        "begins_like": number_of(kin.begins_like),
        "equal_characters": kin.equal,
        "characters": request.characters,
        "equal": max(prompt.equal, equal),
        "again": again,
        "again_changed": changed,
        "turn": turn_of(understood),
        "sections": sections_of(prompt),
        "seconds": request.prefill_seconds,
        "tokens_after": None if divergence is None else max(0, total - prompt.equal),
        "known": {
            "prompt_tokens": "unknown" if request.prompt_tokens is None else "printed",
            "cached": "unknown" if request.cached is None else "printed",
            "processed": "unknown" if request.processed is None else "printed",
            "tokens_after": "unknown" if divergence is None else prompt.how,
            "equal": prompt.how,
        },
        "how": prompt.how,
        "replayed": {"cached": played.cached, "processed": played.processed},
        "agrees": agrees,
        "losses": [loss.as_dict() for loss in played.losses] if agrees is not False else [],
        "parting": None if divergence is None else divergence.as_dict(),
        "slot_taken": _taken_of(understood, again),
        "retokenised": _retokenised(understood, played, again),
        "why": why_of(understood, played, again),
    }
    cause = cause_of(found)
    return found | {"because": None if cause is None else cause["kind"]}


def number_of(request: Recorded | None) -> int | None:
    """The number of a request, if any."""
    return None if request is None else request.number


def turn_of(understood: Understood) -> str:
    """What a request is to the one that it continues."""
    if not understood.prompt.recorded.was_read:
        return "refused"
    if understood.continues is None:
        return "new"
    divergence, segments = understood.divergence, understood.prompt.recorded.segments
    if divergence is not None:
        return "other" if divergence.kind in CONVERSATIONS else "changed"
    return "tool result" if segments and segments[-1].role == "tool" else "continues"


def sections_of(prompt: Prompt) -> dict[str, int]:
    """About how many tokens are of tools, of the system prompt and of messages, by characters."""
    request = prompt.recorded
    total = len(prompt.rope) if request.prompt_tokens is None else request.prompt_tokens
    sums = dict.fromkeys(("tools", "system", "messages"), 0)
    for segment in request.segments:
        kind = "system" if segment.role in SYSTEM else "messages"
        sums["tools" if segment.kind == "tool" else kind] += segment.length
    return {name: round(total * size / max(1, request.characters)) for name, size in sums.items()}


def _again_of(understood: Understood, equal: int) -> tuple[int | None, int | None]:
    """Tokens of an earlier request that were prefilled again, and those of them after a change.

    earlier   [ equal ][ clock ][ the rest, as before ]
    later     [ equal ][ clock ][ the rest, as before ][ new ]
    again         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^   past the cached ones
    changed            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

    `equal`: tokens that the server had computed, where the replay knows it.
    """
    prompt, earlier, divergence = understood.prompt, understood.earlier, understood.divergence
    cached = prompt.recorded.cached
    if cached is None:
        return None, None
    reach = 0
    if earlier is not None:
        held = prompt.equal
        if understood.kin.begins_like is understood.continues:
            held = min(held, _computed(earlier))
        equal = max(equal, held)
        if divergence is not None and divergence.kind not in CONVERSATIONS:
            reach = min(len(prompt.rope), len(earlier.rope))
    return max(0, equal - cached, reach - cached), max(0, reach - max(equal, cached))


def _computed(earlier: Prompt) -> int:
    """Tokens of a prompt and its reply that were computed: all but the last sampled one."""
    return len(earlier.rope) + max(0, len(earlier.reply) - 1)


def why_of(understood: Understood, played: Replayed, again: int | None) -> str:
    """Sentence on a request: the client's change, else the engine's rule, else none."""
    request, continues = understood.prompt.recorded, understood.continues
    if not request.was_read:
        return f"the server refused it: status {request.status}"
    if understood.divergence is not None:
        return understood.divergence.sentence
    if continues is None:
        return "a new conversation"
    taken = _taken_of(understood, again) or _retokenised(understood, played, again)
    if taken is not None:
        return f"continues request {continues.number}: {taken}"
    return f"continues request {continues.number}{_engine(understood, played, again)}"


def _taken_of(understood: Understood, again: int | None) -> str | None:
    """Sentence on an erased or overwritten slot of the continued request, if that lost tokens."""
    taken = understood.taken
    if taken is None or not again or understood.divergence is not None:
        return None
    return f"slot {taken.slot}, which held it, {taken.past}"


def _retokenised(understood: Understood, played: Replayed, again: int | None) -> str | None:
    """The end of reuse inside the earlier reply, if tokens are known and no rule explains it.

    earlier   [ prompt ][ reply ]        the tokens that were sampled
    later     [ prompt ][ reply ][ ... ] the same text, as the tokenizer cuts it
    cached    ^^^^^^^^^^^^^^
    """
    prompt, earlier = understood.prompt, understood.earlier
    cached = prompt.recorded.cached
    if earlier is None or cached is None or not again or understood.divergence is not None:
        return None
    inside = cached - len(earlier.rope)
    at_its_end = cached >= _computed(earlier)
    if prompt.how != "computed" or played.cached == cached or inside <= 0 or at_its_end:
        return None
    return (
        f"reuse ends after {counted(inside, 'token')} of the reply of request "
        f"{earlier.recorded.number}: its text, tokenised again, need not give the sampled tokens"
    )


def _engine(understood: Understood, played: Replayed, again: int | None) -> str:
    cached, equal = understood.prompt.recorded.cached, understood.prompt.equal
    if cached is None:
        return "; the answer does not report cached tokens"
    if cached > equal:
        return f", and {cached - equal:,} tokens more were reused from what is not recorded"
    if not again:
        return ""
    if played.cached is None:
        return f"; {again:,} tokens were processed again, and no replay shows by which rule"
    loss = largest(played.losses) if played.cached == cached else None
    return f": {loss.sentence}" if loss is not None else "; the replay does not show why not all"


def largest(losses: tuple[Loss, ...]) -> Loss | None:
    """The cause with the largest loss."""
    return max(losses, key=lambda loss: loss.before - loss.after, default=None)


def cause_of(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """Group of a request: the client's rewrite, or the engine's rule."""
    divergence = found["parting"]
    if divergence is not None:
        return {
            "kind": divergence["kind"],
            "part": divergence["part"],
            "by": "neither" if divergence["kind"] in CONVERSATIONS else "the client",
            "who": "flag" if divergence["kind"] in CONVERSATIONS else "client",
            "example": divergence["sentence"],
            "advice": divergence["advice"],
        }
    if found["slot_taken"] is not None:
        return {
            "kind": SLOT_TAKEN,
            "part": "",
            "by": "the client",
            "who": "client",
            "example": found["slot_taken"],
            "advice": ADVICE,
        }
    if found["retokenised"] is not None:
        return {
            "kind": RETOKENISED,
            "part": "",
            "by": "the server",
            "who": "design",
            "example": found["retokenised"],
            "advice": KEEP_TOKENS,
        }
    if not found["again"] or not found["losses"]:
        return None
    loss = max(found["losses"], key=lambda loss: loss["from"] - loss["to"])
    return {
        "kind": loss["rule"],
        "part": "",
        "by": "the server",
        "who": remedy_of(loss["rule"]).kind,
        "example": loss["sentence"],
        "advice": remedy_of(loss["rule"]).advice,
    }


KINDS: Final = ("dense", "hybrid", "swa")
"""Candidate kinds of an unnamed model; the server's reuse distinguishes them."""

REACH: Final = 64
"""Earlier requests with which a new one is compared."""

MOST_TEXT: Final = 128 << 20
"""Most characters of earlier requests in memory, repeated parts included."""


COUNTS: Final = ("prompt_tokens", "cached", "processed", "again", "again_changed")


@dataclass(slots=True)
class Totals:
    """Sums over requests; a number without any report is None, never 0."""

    requests: int = 0
    answered: int = 0  # those that the server did not refuse
    comparable: int = 0
    agreeing: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    reported: Counter[str] = field(default_factory=Counter)  # requests with each number

    def add(self, found: Mapping[str, Any], *, answered: bool) -> None:
        self.requests += 1
        self.answered += answered
        self.comparable += found["agrees"] is not None
        self.agreeing += found["agrees"] is True
        for key in COUNTS:
            if found[key] is not None:
                self.sums[key] += found[key]
                self.reported[key] += 1

    def as_dict(self) -> dict[str, Any]:
        """The sums as JSON, with the number of requests of each."""
        sums = {key: self.sums[key] if self.reported[key] else None for key in COUNTS}
        reported = {key: self.reported[key] for key in COUNTS}
        return {"requests": self.requests, "answered": self.answered, **sums, "reported": reported}


class Live:
    """Incremental analysis of recorded requests."""

    def __init__(
        self, about: UserSettings, *, forgets: bool = False, model_how: str = "given"
    ) -> None:
        """`forgets`: keep only the state for the next requests."""
        self.about = about
        self._model_how = model_how
        self.profile: str | None = about.profile and full_name(about.profile)
        self.profile_how = "given" if about.profile else "unknown"
        self.reruns: list[Rerun] = []  # one for each kind of model that it may be
        self.prompts: list[Prompt] = []
        self.totals = Totals()
        self.groups: dict[tuple[str, str], dict[str, Any]] = {}
        self._forgets = forgets
        self._recent: deque[Candidate] = deque()
        self._size = 0
        self._made = Prompts()
        self._slots = Slots()

    def add(self, request: Recorded) -> dict[str, Any]:
        """Analyse the next request."""
        understood = self._understand(request)
        for rerun in self.reruns:
            rerun.add(understood.prompt)
        best = self.rerun
        return self._finish(understood, FAILED if best is None else best.last)

    def add_all(self, requests: Sequence[Recorded]) -> list[dict[str, Any]]:
        """Analyse many requests; concurrent ones are replayed concurrently."""
        understood = [self._understand(request) for request in requests]
        for rerun in self.reruns:
            rerun.add_all([one.prompt for one in understood])
        best = self.rerun
        played = {} if best is None else best.played
        return [
            self._finish(one, played.get(one.prompt.recorded.number, FAILED)) for one in understood
        ]

    def _understand(self, request: Recorded) -> Understood:
        # The earlier requests with which it is compared, from the recorder if available.
        if request.seen is None:
            kin = kin_of(request, reversed(self._recent))
        else:
            known = {candidate.request.number: candidate.request for candidate in self._recent}
            begins_like, equal, continued = request.seen
            kin = Kin(known.get(begins_like), equal, known.get(continued))
        if kin.continues is None or not (kin.equal or kin.alike >= BLOCK or request.divergence):
            divergence = None
        elif request.seen is not None:
            divergence = (
                None if request.divergence is None else Divergence.from_dict(request.divergence)
            )
        else:
            divergence = divergence_of(request, kin.continues)
        prompt = self._made.add(request, kin.begins_like, kin.equal)
        continues = kin.continues if kin.equal or divergence else None
        earlier = self._made.made.get(continues.number) if continues is not None else None
        if not self.reruns:
            self._open(request)
        self.prompts.append(prompt)
        self._recent.append(Candidate.of(request))
        self._size += request.characters
        while len(self._recent) > REACH or (self._size > MOST_TEXT and len(self._recent) > 1):
            oldest = self._recent.popleft().request
            self._size -= oldest.characters
            self._made.forget(oldest.number)
        if self._forgets:
            del self.prompts[:-1]
        return Understood(prompt, kin, continues, earlier, divergence)

    def _finish(self, understood: Understood, played: Replayed) -> dict[str, Any]:
        request = understood.prompt.recorded
        for action in request.actions:
            self._slots.act(action)
        continued = number_of(understood.continues)
        found = entry_of(replace(understood, taken=self._slots.lost(continued)), played)
        self._slots.ran(request.number, played.slot if request.slot is None else request.slot)
        self.totals.add(found, answered=request.was_read)
        cause = cause_of(found)
        if cause is not None:
            group = self.groups.setdefault(
                (cause["kind"], cause["part"]),
                {**cause, "tokens": None, "tokens_after": 0, "requests": []},
            )
            group["tokens_after"] += found["tokens_after"] or 0
            if found["again"] is not None:
                group["tokens"] = (group["tokens"] or 0) + found["again"]
            group["requests"].append(found["number"])
        return found

    def check(self) -> None:
        """Raise InputError if no server starts with the user's settings."""
        if self.profile is not None:
            opened(
                self.profile, self.about.model or KINDS[0], self.about.window, self.about.options
            )
        elif self.about.model is not None and self.about.model not in PRESETS:
            preset(self.about.model)

    @property
    def rerun(self) -> Rerun | None:
        """The replay that agrees with most of the server's answers."""
        return max(self.reruns, key=lambda rerun: rerun.agreeing, default=None)

    @property
    def options(self) -> dict[str, Any]:
        """Those of the server that is run."""
        return dict(self.rerun.options) if self.rerun else {}

    @property
    def model_how(self) -> str:
        """Source of the model's kind."""
        if self.about.model:
            return self._model_how
        best = self.rerun
        first = best is None or all(
            best.agreeing == rerun.agreeing
            for rerun in self.reruns
            if rerun.options == best.options
        )
        return "assumed" if first else "computed"

    def _open(self, request: Recorded) -> None:
        """Start the simulated server once its profile is known."""
        try:
            self._start(request)
        except InputError as error:
            name = "" if self.about.profile or self.about.options else field_of(request, str(error))
            if not (name and request.source):
                raise
            raise InputError(f"{request.source}:{request.line}: field {name}: {error}") from None

    def _start(self, request: Recorded) -> None:
        if self.profile is None:
            played = profile_of(request)
            if played is None:
                return
            named = Profile.parse(played.profile)
            family_of(named.engine).rules(named)  # raises where there is none
            self.profile, self.profile_how = played.profile, played.how
        options = known(self.profile, options_in(request))
        split = {} if self.about.options else split_of(request, options)
        guess = kind_of(str(request.server.get("model") or request.model).rsplit("/", 1)[-1])
        kinds = dict.fromkeys((guess or KINDS[0], *KINDS))
        every = [options | dict(self.about.options), *([split] if split else ())]
        for values, kind in product(every, [self.about.model] if self.about.model else kinds):
            try:
                server = opened(self.profile, kind, self.about.window, values)
            except InputError:
                if self.about.model or not self.reruns:
                    raise
                continue  # this engine has no such models
            self.reruns.append(Rerun(kind, server, values))


FEW: Final = 2_000
"""Most requests that are replayed on other engines by default."""


def report_of_dump(
    requests: Sequence[Recorded],
    *,
    source: str,
    about: UserSettings | None = None,
    what_if: Sequence[str] | None = (),
) -> dict[str, Any]:
    """The complete analysis, as `--format json` prints it; on no other server if that is None."""
    about = about or UserSettings()
    live = Live(about)
    entries = live.add_all(requests)
    if live.rerun is not None and live.model_how == "computed":
        live = Live(replace(about, model=live.rerun.model), model_how="computed")
        entries = live.add_all(requests)
    if not any(live.totals.reported.values()) and all(
        entry["continues"] is None and not entry["equal_characters"] for entry in entries
    ):
        raise InputError(
            f"{source}: no answer's `usage` or `timings`, and no two requests that begin alike: "
            "there is nothing to explain; `cachesim record` records the answers too"
        )
    found = report_of_live(live, source=source)
    found["totals"]["after_partings"] = sum(entry["tokens_after"] or 0 for entry in entries)
    found["requests"] = entries
    if what_if or (what_if is not None and len(requests) <= FEW):
        found["what_if"] = list(elsewhere(live, what_if))
    return found | {"answer": answer_of(found)}


def report_of_live(live: Live, *, source: str) -> dict[str, Any]:
    """Totals of the requests so far."""
    totals = live.totals
    found = {
        "format": FORMAT,
        "dump": {"sources": [source], "requests": totals.requests},
        "server": server_of(live),
        "totals": totals.as_dict(),
        "agreement": {
            "requests": totals.requests,
            "comparable": totals.comparable,
            "agreeing": totals.agreeing,
        },
        "causes": causes_of(live),
        "requests": [],
        "what_if": [],
    }
    return found | {"answer": answer_of(found)}


def server_of(live: Live) -> dict[str, Any] | None:
    """The simulated server, with the source of its profile."""
    if live.rerun is None:
        return None
    return {
        "profile": live.profile,
        "profile_known": live.profile_how,
        "model": live.rerun.model,
        "model_known": live.model_how,
        "problem": live.rerun.problem,
    }


def causes_of(live: Live) -> list[dict[str, Any]]:
    """Causes of one kind in one part of the prompt, sorted by loss."""
    groups = live.groups.values()
    return sorted(groups, key=lambda g: (-(g["tokens"] or 0), -len(g["requests"]), g["kind"]))


def elsewhere(live: Live, requested: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The same requests on other engines: prefilled tokens, and requests with reuse."""
    if live.rerun is None or live.profile is None:
        return
    recorded = {} if not live.prompts else options_in(live.prompts[0].recorded)
    recorded |= {name: live.options[name] for name in recorded.keys() & live.options.keys()}
    if "max_model_len" in recorded:  # vLLM's pool has to hold a request of this length
        longest = max(len(prompt.rope) + len(prompt.reply) for prompt in live.prompts)
        recorded["max_model_len"] = min(recorded["max_model_len"], longest + 1)
    for profile in map(full_name, requested) if requested else others(live.profile):
        options = known(profile, recorded) | dict(live.about.options)
        yield played_elsewhere(profile, live.rerun.model, live.about.window, options, live.prompts)
