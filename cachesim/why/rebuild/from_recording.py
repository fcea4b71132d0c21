"""Recorded requests on a simulated server: the expected reuse, and the rules that limit it.

Requests are run one after the other in the order in which they ended, but for those that were at
work together where the times are known: these are launched before the first of them ends.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from cachesim.engines import FAMILIES
from cachesim.engines.base import Engine, Request
from cachesim.engines.family import Profile, family_of
from cachesim.engines.llamacpp.family import FAMILY as LLAMA_CPP
from cachesim.engines.tokens import Rope
from cachesim.engines.words import counted
from cachesim.errors import CachesimError, InputError, UpstreamAbort
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.play.loop import Loop
from cachesim.play.session import SlotActions, SlotFiles
from cachesim.typed import mapping
from cachesim.why.infer.settings import RELEASES
from cachesim.why.read.dump import Recorded
from cachesim.why.read.segments import whole
from cachesim.why.read.slot_actions import SlotAction
from cachesim.why.rebuild.prompts import Prompt
from cachesim.why.replay.judged import VOCABULARY, numbered
from cachesim.why.replay.player import (
    FAILED,
    NO_FILE,
    Player,
    Replayed,
    ReplayRequest,
    replayed,
)

LLAMA_BUILD: Final = re.compile(r"b(\d{3,6})-[0-9a-f]{5,}")
MLX_VERSION: Final = re.compile(r"(\d{1,6}\.\d{1,6}\.\d{1,6})-\d{1,6}\.\d")

LONGEST_BY_TOKEN: Final = 200_000
"""Most tokens of a workload on engines that are replayed token by token."""


@dataclass(frozen=True, slots=True)
class Played:
    """A simulated server with its source."""

    profile: str
    how: str  # "printed" by the server, "given" by the user, "assumed"


def full_name(profile: str) -> str:
    """A profile's name with its engine: `b9538` is llama.cpp's."""
    return profile if "@" in profile else f"{LLAMA_CPP.name}@{profile}"


def options_in(request: Recorded) -> dict[str, Any]:
    """The recorder's flags, and those reported by the server."""
    facts = request.server
    options: dict[str, Any] = {}
    slots, context = whole(facts.get("slots")), whole(facts.get("n_ctx"))
    given = dict(mapping(facts.get("options")))
    if slots:
        options["parallel"] = slots
    played = profile_of(request)
    is_llama = played is None or Profile.parse(played.profile).engine == LLAMA_CPP.name
    if is_llama and slots == UNASKED and not {"parallel", "kv_unified"} & given.keys():
        options["kv_unified"] = True
    if context:  # of a slot, which is all of a context that the slots share
        shares = options.get("kv_unified", given.get("kv_unified", False))
        options |= dict.fromkeys(CONTEXTS, context)
        options["ctx_size"] = context * (1 if shares else slots or 1)
    return options | given


def split_of(request: Recorded, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with a context for each slot, where nothing but four slots says that they share one.

    llama-server's `/slots` and `/props` have the context of a slot, and it is the same for both.
    """
    told = mapping(request.server.get("options")).keys()
    if not options.get("kv_unified") or told & {"parallel", "kv_unified"}:
        return {}
    size = options.get("ctx_size")
    parts = {} if size is None else {"ctx_size": size * options["parallel"]}
    return {**options, "kv_unified": False, **parts}


UNASKED: Final = 4
"""Slots that llama-server opens where no flag says how many; they share its context."""

CONTEXTS: Final = ("n_ctx", "max_model_len", "context_length")
"""Names of the context in other engines, for the same requests on them."""


def field_of(request: Recorded, problem: str) -> str:
    """The field of a recorded server that a problem is about; empty if it is none."""
    named = [option for option in options_in(request) if re.search(rf"\b{option}\b", problem)]
    if len(named) == 1:
        options = mapping(request.server.get("options"))
        own = {"parallel": "slots", "ctx_size": "n_ctx"}
        return (
            f"server.{own[named[0]]}" if named[0] not in options else f"server.options.{named[0]}"
        )
    if named:
        return "server.options"
    return "server.profile" if isinstance(request.server.get("profile"), str) else ""


def profile_of(request: Recorded) -> Played | None:
    """The profile of a server: the recorder's, or that of its fingerprint."""
    given = request.server.get("profile")
    if isinstance(given, str):
        return Played(full_name(given), "given")
    fingerprint = request.fingerprint or str(request.server.get("build") or "")
    build = LLAMA_BUILD.match(fingerprint)
    if build is not None:
        number = int(build.group(1))
        name = min(RELEASES, key=lambda release: (abs(RELEASES[release] - number), release))
        exact = RELEASES[name] == number
        return Played(f"{LLAMA_CPP.name}@{name}", "printed" if exact else "assumed")
    version = MLX_VERSION.match(fingerprint)
    if version is None:
        return None
    mlx = family_of("mlx-lm")
    names = mlx.names()
    if version.group(1) in names:
        return Played(f"{mlx.name}@{version.group(1)}", "printed")
    return Played(f"{mlx.name}@{names[-1]}", "assumed")


def spec_for(profile: str, model: str, **changes: Any) -> ModelSpec:
    """A preset's model, with a vocabulary for token-by-token replay."""
    if Profile.parse(profile).engine != LLAMA_CPP.name:
        changes["vocabulary"] = VOCABULARY
    return preset(model, **{name: value for name, value in changes.items() if value is not None})


def opened(profile: str, model: str, window: int | None, options: Mapping[str, Any]) -> "Server":
    """A new server without arithmetic, with a preset's model."""
    try:
        return started(profile, spec_for(profile, model, window=window or None), options)
    except UpstreamAbort as error:
        flags = ", ".join(f"{name} {value}" for name, value in sorted(options.items()))
        raise InputError(f"{profile}: no server starts with {flags}: {error}") from None


def started(profile: str, spec: ModelSpec, options: Mapping[str, Any]) -> "Server":
    """A new server without arithmetic."""
    if Profile.parse(profile).engine == LLAMA_CPP.name:
        return Player(profile, spec, options)
    family = FAMILIES[Profile.parse(profile).engine]
    quiet = {family.records_provenance: False} if family.records_provenance else {}
    engine = Engine.create(
        profile,
        model=spec,
        options=quiet | dict(options),
        arithmetic="counts",
        store=SlotFiles() if family.has_slots else None,
    )
    return TokenServer(Loop(engine), family.has_slots)


def request_of(prompt: Prompt) -> ReplayRequest:
    """A request for the player."""
    recorded = prompt.recorded
    slot = recorded.sampling.get("id_slot", -1)
    return ReplayRequest(
        number=recorded.number,
        prompt=prompt.rope,
        reply=prompt.reply or Rope.of(2 * recorded.number + 1, 1),
        slot=slot if isinstance(slot, int) else -1,
        cache_prompt=recorded.sampling.get("cache_prompt") is not False,
        user_starts=prompt.user_starts,
        cancel_at=len(prompt.rope) + len(prompt.reply) if recorded.cancelled else None,
    )


@dataclass(slots=True)
class TokenServer:
    """Every engine but llama.cpp: each token is a vocabulary id."""

    loop: Loop
    has_slots: bool
    tokens: int = 0
    files: set[str] = field(default_factory=set)

    def play(self, request: ReplayRequest) -> Replayed:
        """Run a request to its end."""
        self.tokens += len(request.prompt)
        if self.tokens > LONGEST_BY_TOKEN:
            return FAILED
        reply = numbered(request.reply)
        sent = Request(prompt=numbered(request.prompt), predict=len(reply), reply=reply)
        self.loop.new_events()
        answer, events = self.loop.answer(sent), self.loop.new_events()
        return FAILED if answer is None else replayed(answer, events)

    def act(self, action: SlotAction) -> None:
        """Save, restore or erase a slot; ignored without slots."""
        engine = self.loop.engine
        if not self.has_slots or not isinstance(engine, SlotActions):
            return
        if action.action == "save":
            engine.slot_save(action.slot, action.file)
            self.files.add(action.file)
        elif not action.was_done:
            engine.slot_restore(action.slot, NO_FILE)
        elif action.action == "restore" and action.file in self.files:
            engine.slot_restore(action.slot, action.file)
        else:
            engine.slot_erase(action.slot)
        self.loop.drain()

    def held_bytes(self) -> int:
        """Bytes of prompt-cache entries."""
        return sum(entry.size for entry in self.loop.engine.held().entries)


Server: TypeAlias = Player | TokenServer
"""A simulated server for consecutive requests."""

LAUNCH, ACT, FINISH = "launch", "act", "finish"


def order_of(prompts: Sequence[Prompt]) -> list[tuple[str, int]]:
    """Launches and ends in order; none where a request has no times."""
    if any(None in (prompt.recorded.began, prompt.recorded.seconds) for prompt in prompts):
        return []
    found: list[tuple[float, int, str, int]] = []
    ended = 0.0  # when the last of the requests before it did: an action waits for an idle slot
    for prompt in prompts:
        began, number = prompt.recorded.began or 0.0, prompt.recorded.number
        found.append((began, 0, LAUNCH, number))
        found.append((began + (prompt.recorded.seconds or 0.0), 1, FINISH, number))
        for action in prompt.recorded.actions:
            at = began if action.began is None else action.began + (action.seconds or 0.0)
            late = action.began is not None
            found.append((max(at, ended) if late else at, 2 if late else -1, ACT, action.number))
        ended = max(ended, began + (prompt.recorded.seconds or 0.0))
    return [(what, number) for _, _, what, number in sorted(found)]


@dataclass(slots=True)
class Rerun:
    """A server that replays requests until it fails."""

    model: str
    server: Server
    options: Mapping[str, Any] = field(default_factory=dict)
    played: dict[int, Replayed] = field(default_factory=dict)
    problem: str = ""
    agreeing: int = 0
    last: Replayed = FAILED
    weighs: bool = False  # look at what is held after each step
    peak_bytes: int = 0

    def add(self, prompt: Prompt) -> Replayed:
        """Add a request, unless the real server refused it."""
        self.last = self._played(prompt)
        self._weigh()
        cached = prompt.recorded.cached
        self.agreeing += cached is not None and self.last.cached == cached
        return self.last

    def add_all(
        self, prompts: Sequence[Prompt], order: Sequence[tuple[str, int]] | None = None
    ) -> None:
        """Add many requests; concurrent ones run concurrently if the server supports it."""
        order = order_of(prompts) if order is None else order
        if not isinstance(self.server, Player) or not order:
            for added in prompts:
                self.add(added)
            return
        by_number = {prompt.recorded.number: prompt for prompt in prompts}
        actions = {one.number: one for prompt in prompts for one in prompt.recorded.actions}
        for what, number in order:
            if what == ACT:
                self.act(actions[number])
                continue
            prompt = by_number[number]
            if self.problem or not prompt.recorded.was_read or not len(prompt.rope):
                continue
            try:
                if what == LAUNCH:
                    self.server.launch(request_of(prompt))
                else:
                    self.played[number] = self.server.run_until(number)
                self._weigh()
            except CachesimError as error:
                self.problem = str(error)
        self.agreeing = sum(
            prompt.recorded.cached is not None
            and self.played.get(prompt.recorded.number, FAILED).cached == prompt.recorded.cached
            for prompt in prompts
        )

    def _weigh(self) -> None:
        if self.weighs:
            self.peak_bytes = max(self.peak_bytes, self.server.held_bytes())

    def act(self, action: SlotAction) -> None:
        """Apply a client's slot action, if the real server did."""
        if self.problem or not action.changes:
            return
        try:
            self.server.act(action)
        except CachesimError as error:
            self.problem = str(error)

    def _played(self, prompt: Prompt) -> Replayed:
        for action in prompt.recorded.actions:
            self.act(action)
        if self.problem or not prompt.recorded.was_read or not len(prompt.rope):
            return FAILED
        try:
            found = self.server.play(request_of(prompt))
        except CachesimError as error:
            self.problem = str(error)
            return FAILED
        self.played[prompt.recorded.number] = found
        return found


def elsewhere(
    profile: str,
    model: str,
    window: int | None,
    options: Mapping[str, Any],
    prompts: Sequence[Prompt],
) -> dict[str, Any]:
    """The same requests on another server: prefilled tokens, and requests with reuse."""
    try:
        rerun = Rerun(model, opened(profile, model, window, known(profile, options)))
    except CachesimError as error:
        return {"name": profile, "problem": str(error)} | dict.fromkeys(COLUMNS)
    rerun.add_all(prompts)
    answers = [reply for reply in rerun.played.values() if reply.cached is not None]
    asked = sum(prompt.recorded.was_read for prompt in prompts)
    refused = [reply for reply in rerun.played.values() if reply.error not in {None, FAILED.error}]
    problem = rerun.problem
    if not problem and refused:
        why = refused[0].message or refused[0].error
        problem = f"refuses {len(refused)} of {counted(asked, 'request')}: {why}"
    elif not problem and len(answers) < asked:
        problem = "too long to be replayed token by token"
    if asked and not answers:
        return {"name": profile, "problem": problem} | dict.fromkeys(COLUMNS)
    return {
        "name": profile,
        "processed": sum(answer.processed or 0 for answer in answers),
        "cached": sum(answer.cached or 0 for answer in answers),
        "hits": sum(bool(answer.cached) for answer in answers),
        "problem": problem,
    }


COLUMNS: Final = ("processed", "cached", "hits")


def known(profile: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that a server has."""
    named = Profile.parse(profile)
    family = FAMILIES[named.engine]
    declared = {option.name: option for option in family.declared}
    return {
        name: value
        for name, value in options.items()
        if name in declared and family.has(declared[name], named, value)
    }


def others(own: str) -> Iterator[str]:
    """The server's own profile, its neighbouring releases, and the newest of each other engine."""
    yield own
    profile = Profile.parse(own)
    family = FAMILIES[profile.engine]
    names = family.names()
    at = names.index(family.current_name(profile.release))
    near = [*names[max(0, at - 1) : at], *names[at + 1 : at + 2], names[-1]]
    yield from dict.fromkeys(f"{family.name}@{release}" for release in near if release != names[at])
    for other in FAMILIES.values():
        if other.name != family.name:
            yield f"{other.name}@{other.names()[-1]}"
