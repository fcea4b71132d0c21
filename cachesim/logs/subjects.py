"""What `tune` plays with other settings: a log's workload, recorded requests, or a scenario."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from cachesim.engines import FAMILIES
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.engines.profile import Profile
from cachesim.errors import InputError
from cachesim.logs.dump import Recorded
from cachesim.logs.live import Live
from cachesim.logs.other import OnServer, Outcome, release_of, workload_of
from cachesim.logs.prompts import Prompt
from cachesim.logs.replay import Replay
from cachesim.logs.rerun import Rerun, known, options_in, spec_for, started
from cachesim.logs.sizes import ASSUMED, GIVEN, how_known
from cachesim.logs.whole import Wanted
from cachesim.model.spec import ModelSpec, Sizes
from cachesim.scenario.acceptance import full_profile
from cachesim.scenario.format import Scenario
from cachesim.scenario.models import spec_of
from cachesim.scenario.session import Session
from cachesim.typed import of_kind

CELLS: Final = 256
"""A context is rounded up to so many tokens."""


class Subject(Protocol):
    """Something that can be played with any settings of its server."""

    @property
    def engine(self) -> str:
        """The server's engine."""
        ...

    @property
    def release(self) -> str:
        """The server's release."""
        ...

    @property
    def spec(self) -> ModelSpec:
        """The model."""
        ...

    @property
    def requests(self) -> int:
        """How many requests it has."""
        ...

    def outcome(self, options: Mapping[str, Any]) -> Outcome:
        """Play it with these settings; raises InputError where the server refuses them."""
        ...


@dataclass(frozen=True, slots=True)
class Life:
    """What a server did from its start to its end, and the settings that it was started with."""

    subject: Subject
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tuned:
    """What is swept, how its bytes are known, and what had to be assumed."""

    lives: tuple[Life, ...]  # the one with the most requests first
    sizes: str
    assumed: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        """How many requests they have in all."""
        return sum(each.subject.requests for each in self.lives)


@dataclass(frozen=True, slots=True)
class OfScenario:
    """A scenario, with everything that its steps do."""

    scenario: Scenario
    profile: Profile
    spec: ModelSpec = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", spec_of(self.scenario.model))

    @property
    def engine(self) -> str:
        """The server's engine."""
        return self.profile.engine

    @property
    def release(self) -> str:
        """The server's release."""
        return release_of(str(self.profile))

    @property
    def requests(self) -> int:
        """How many requests it has."""
        return sum(step.do == "complete" for step in self.scenario.step)

    def outcome(self, options: Mapping[str, Any]) -> Outcome:
        """Play it over exact numbers: replies that later prompts repeat are the same each time."""
        engine = replace(self.scenario.engine, options=dict(options))
        changed = replace(self.scenario, engine=engine)
        session = Session(changed, self.profile, arithmetic="ring", looks=False)
        server = of_kind(LlamaCpp, session.engine)  # the profile says so
        processed = failed = peak = 0
        for record in session.run():
            peak = max(peak, server.held_bytes())
            if record.step.do == "complete":
                answer = record.reply
                done = None if answer is None else answer.processed
                processed += 0 if done is None else int(done)
                failed += done is None
        return Outcome(processed, peak, failed)


@dataclass(frozen=True, slots=True)
class OfRequests(OnServer):
    """Recorded requests, with what was done to slots between them."""

    prompts: tuple[Prompt, ...]

    @property
    def requests(self) -> int:
        """How many requests it has."""
        return len(self.prompts)

    def outcome(self, options: Mapping[str, Any]) -> Outcome:
        """Play them in the order in which they came and ended."""
        rerun = Rerun(self.profile, "", started(self.profile, self.spec, options), weighs=True)
        rerun.add_all(self.prompts)
        answers = [each for each in rerun.played.values() if each.cached is not None]
        return Outcome(
            processed=sum(each.processed or 0 for each in answers),
            peak_bytes=rerun.peak_bytes,
            failed=len(self.prompts) - len(answers),
        )


def of_log(replays: Sequence[Replay], sizes: Sizes | None) -> Tuned:
    """A log's rebuilt workloads, one for each start of the server."""
    longest_first = sorted(replays, key=lambda each: -len(each.requests))
    longest = longest_first[0]
    known_by = how_known(longest.log, longest.settings.spec)
    if sizes is not None:
        known_by = GIVEN
        for each in replays:
            each.settings.sizes = sizes
    lives = (Life(workload_of(each), each.settings.values) for each in longest_first)
    return Tuned(tuple(lives), known_by)


def of_dump(requests: Sequence[Recorded], wanted: Wanted, sizes: Sizes | None) -> Tuned:
    """Recorded requests, in the order in which they came and ended."""
    live = Live(wanted)
    live.add_all(requests)
    if live.profile is None:
        msg = "the requests do not name their server; name its release, as in --profile b9538"
        raise InputError(msg)
    named = Profile.parse(live.profile)
    family = FAMILIES[named.engine]
    if not family.swept:
        swept = " and ".join(each.name for each in FAMILIES.values() if each.swept)
        msg = (
            f"these requests went to {named.engine}, and tune has settings to try for {swept}; "
            "cachesim why --what-if shows what other servers would have reused"
        )
        raise InputError(msg)
    prompts = [each for each in live.prompts if each.recorded.was_read and len(each.rope)]
    if not prompts or live.rerun is None:
        msg = "no request was answered: there is nothing to play"
        raise InputError(msg)
    options = known(live.profile, options_in(requests[0])) | dict(wanted.options)
    assumed = [] if live.profile_how != "assumed" else [f"release {named.release}"]
    if any(each.recorded.prompt_tokens is None and not each.recorded.runs for each in prompts):
        assumed.append("lengths of prompts, from their characters")
    assumed += [] if wanted.model else [f"a model like the preset {live.rerun.model}"]
    if "ctx_size" not in options and any(each.name == "ctx_size" for each in family.declared):
        longest = max(len(each.rope) + len(each.reply) for each in prompts)
        options["ctx_size"] = -(-(longest + 1) // CELLS) * CELLS * int(options.get("parallel", 1))
        assumed.append(f"ctx_size {options['ctx_size']}")
    spec = spec_for(live.profile, live.rerun.model, window=wanted.window or None, sizes=sizes)
    subject = OfRequests(live.profile, spec, tuple(prompts))
    return Tuned((Life(subject, options),), _given(spec), tuple(assumed))


def of_scenario(scenario: Scenario, wanted: Wanted, sizes: Sizes | None) -> Tuned:
    """A scenario on the first of its profiles, or on the one that is named."""
    if scenario.engine.name != FAMILY.name:
        msg = f"{scenario.name}: tune sweeps the settings of llama.cpp, not {scenario.engine.name}"
        raise InputError(msg)
    if sizes is not None:
        model = replace(scenario.model, sizes={n: getattr(sizes, n) for n in sizes.__slots__})
        scenario = replace(scenario, model=model)
    played = full_profile(FAMILY.name, wanted.profile or scenario.engine.profiles[0])
    FAMILY.rules(played)  # raises where there is none
    options = {**scenario.engine.options, **wanted.options}
    release = release_of(str(played))
    options.setdefault("ctx_size", FAMILY.default(FAMILY.option("ctx_size"), release))
    subject = OfScenario(scenario, played)
    return Tuned((Life(subject, options),), _given(subject.spec))


def _given(spec: ModelSpec) -> str:
    return ASSUMED if spec.sizes is None else GIVEN
