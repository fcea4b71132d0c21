"""A replayed log as plain data: totals, causes, requests, the source of each number."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from cachesim.engines.family import family_of
from cachesim.engines.llamacpp.vocabulary.events import CheckpointKept, CheckpointRestored
from cachesim.engines.words import counted, numbered
from cachesim.why.explain.answer import answer_of
from cachesim.why.explain.log_sentences import FORCED, FURTHER, NEARLY, held_by, log_sentences
from cachesim.why.explain.remedies import FACTS_WITHOUT_REPLAY, remedy_of
from cachesim.why.explain.wrong import wrong_in
from cachesim.why.infer.evidence import Lengths
from cachesim.why.infer.settings import setting
from cachesim.why.infer.sizes import WHOSE, how_known
from cachesim.why.read.observed import (
    PYTHON,
    UNKNOWN,
    Known,
    Observed,
    computed,
)
from cachesim.why.replay.replayed import Rebuilt, Replay


def losses_of(o: Observed, common: Known, lengths: Lengths) -> list[dict[str, Any]]:
    """Causes from the log's own lines, from the common prefix down to the reused tokens."""
    cached, equal = lengths.cached.value, common.value
    if cached is None:
        return []
    if equal is None:
        equal = _nearly_all(o, lengths)
        is_lost = equal is not None and cached < equal
        return (
            [_loss("state-missing", equal or 0, cached, _no_state(equal or 0))] if is_lost else []
        )
    if cached >= equal:
        return []
    rule, words = _rule_of(o, equal, cached)
    if rule == "unknown" and _nearly_all(o, lengths) is not None:
        rule, words = "state-missing", _no_state(equal)
    return [_loss(rule, equal, cached, words)]


def _no_state(equal: int) -> str:
    return (
        f"About {equal:,} tokens match, and all were processed: there was no usable state. A slot "
        "that was restored from a file, or a conversation that came back, had no checkpoints"
    )


def _rule_of(o: Observed, equal: int, cached: int) -> tuple[str, str]:
    if o.refused_cut and o.shared is not None and o.refused_at is None:
        return "cut-refused", f"A recurrent state cannot be cut back to token {equal:,}"
    if o.refused_cut:
        return "seq-rm-refused", "Memory cannot be cut there, and was cleared"
    if o.forced or (o.checked and o.restored is None):
        return "full-reprocessing", _none_qualifies(o, equal)
    if o.restores_blocks and cached < equal:
        return "block-end", (
            f"{equal:,} tokens match a stored sequence, and the last of its blocks that could be "
            f"restored ends at {cached:,}"
        )
    if o.takes_snapshots and cached < equal - 1:
        return "state-missing", (
            f"No snapshot is at token {equal:,}, and the last before it is at {cached:,}. The "
            "runner saves one there while it processes the prompt"
        )
    if o.restored is not None:
        words = f"Memory could not go back to token {equal:,}; the latest checkpoint that qualified"
        used = "" if cached in {o.restored, o.restored_at} else f", of which {cached:,} were reused"
        return "memory-depth", f"{words} has {o.restored_at:,} tokens{used}"
    if cached == equal - 1:
        return "last-token", "The last token is processed for its logits"
    return "unknown", "The log has no line on why fewer were reused"


def _none_qualifies(o: Observed, equal: int) -> str:
    if not o.prints_tries:
        return f"Memory could not be cut back to token {equal:,}, and no checkpoint helped"
    if not o.checked:
        return f"No checkpoint is at or before token {equal:,}: the slot had none"
    lowest, bound = min(low for low, _, _ in o.checked), o.checked[-1][2]
    tried = "the one that was" if len(o.checked) == 1 else f"the nearest of {len(o.checked)}"
    if bound < lowest <= equal:  # a window before the token is needed too
        return (
            f"No checkpoint reaches back to position {bound:,}, where the window of token "
            f"{equal:,} begins: {tried} tried begins at position {lowest:,}"
        )
    return (
        f"No checkpoint is at or before token {equal:,}: {tried} tried begins at position "
        f"{lowest:,}"
    )


def _nearly_all(o: Observed, lengths: Lengths) -> int | None:
    """Common tokens if the printed ratios round to everything."""
    whole = lengths.prompt.value
    try:
        sim = float(o.sim) if o.sim is not None else 0.0
    except ValueError:
        return None
    if whole is None or sim < NEARLY or (lengths.cached.value or 0) > whole * (1 - NEARLY):
        return None
    return round(sim * whole)


def _loss(rule: str, before: int, after: int, sentence: str) -> dict[str, Any]:
    return {
        "rule": rule,
        "from": before,
        "to": after,
        "detail": {},
        "sentence": sentence,
        "by": "the log",
    }


FEWEST: Final = 2
"""Fewest requests that diverge at one token to be reported as a place."""

EITHER: Final = (
    "Either the client changes something there in every request (a date, an id, the order of "
    "tools), or these are separate conversations that begin alike. In the first case, have the "
    "client leave it unchanged; `cachesim record` between client and server shows the words."
)
SHIFTED: Final = (
    "Before each of them, a context shift discarded the slot's tokens from there on "
    "(`--context-shift`), and later ones took their place. Raise the context's size "
    "(`--ctx-size`)."
)
NEAR_THE_START: Final = (
    "Either the client changes something near the start in every request (a date, an id, the "
    "order of tools), or conversations take turns in one slot. `-lv 4` prints the token at which "
    "they diverge, and `cachesim record` between client and server shows the words."
)


@dataclass(frozen=True, slots=True)
class Place:
    """Requests that diverge at one token, or early, if the log has no token."""

    token: int | None  # None: near the start, no line says where
    requests: list[int]
    processed: int
    sentence: str
    advice: str


def places_of(requests: Sequence[tuple[int, Rebuilt]], least: float) -> list[Place]:
    """The place at which most reprocessing begins, if there is one.

    `requests` with their numbers; `least` is the part of a prompt that chooses a slot.
    """
    whole = sum(rebuilt.lengths.processed.value or 0 for _, rebuilt in requests)
    found = [*_at_one_token(requests), *_near_the_start(requests, least)]
    return [place for place in found if place.processed * 2 >= whole > 0]


def _at_one_token(requests: Sequence[tuple[int, Rebuilt]]) -> Iterator[Place]:
    groups: dict[int, list[tuple[int, Rebuilt]]] = {}
    for number, rebuilt in requests:
        at = _diverges_at(rebuilt)
        if at is not None:
            groups.setdefault(at, []).append((number, rebuilt))
    for at, group in groups.items():
        if len(group) < FEWEST:
            continue
        after = sum((rebuilt.lengths.prompt.value or 0) - at for _, rebuilt in group)
        yield Place(
            token=at,
            requests=[number for number, _ in group],
            processed=after,
            sentence=f"{len(group)} of {len(requests)} requests diverge from what was held at the "
            f"same place, token {at:,}: the {after:,} tokens from there on were processed.",
            advice=SHIFTED
            if all(rebuilt.observed.shifted_before == at for _, rebuilt in group)
            else EITHER,
        )


def _diverges_at(each: Rebuilt) -> int | None:
    """The first token that differs from the slot's, if both continue."""
    at, prompt = each.common, each.lengths.prompt
    cached, held = each.lengths.cached.value, held_by(each.observed, each.common, each.holder)
    if at.value is None or not at.is_sure or prompt.value is None or cached is None:
        return None
    goes_on = at.value < (prompt.value if held is None else min(held, prompt.value))
    return at.value if goes_on and each.holder != "nothing" and cached <= at.value else None


def _near_the_start(requests: Sequence[tuple[int, Rebuilt]], least: float) -> Iterator[Place]:
    group = [(number, rebuilt) for number, rebuilt in requests if _is_early(rebuilt)]
    if len(group) >= FEWEST and least > 0:
        processed = sum(rebuilt.lengths.processed.value or 0 for _, rebuilt in group)
        yield Place(
            token=None,
            requests=[number for number, _ in group],
            processed=processed,
            sentence=f"{len(group)} of {len(requests)} requests match at most {least:g} of their "
            f"prompt with what a slot held, and were processed whole: {processed:,} tokens.",
            advice=NEAR_THE_START,
        )


def _is_early(each: Rebuilt) -> bool:
    early = each.observed.choice == "age" and each.lengths.cached.value == 0
    return early and each.common.how == "bounded" and each.common.value == 0


FORMAT: Final = 1

OFTEN: Final = 3
"""Number of backward clock steps that indicates mixed logs."""

LEAST: Final = 0.1
"""Default similarity that a slot needs to be chosen for a prompt."""


@dataclass(slots=True)
class Group:
    """A cause over a whole log."""

    cause: str
    tokens: int = 0
    requests: list[int] = field(default_factory=list)
    sentence: str = ""
    engine: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The group as JSON."""
        cure = remedy_of(self.cause, self.engine)
        return {
            "cause": self.cause,
            "tokens": self.tokens,
            "requests": self.requests,
            "kind": cure.kind,
            "example": self.sentence,
            "cure": cure.advice,
            "upstream": cure.upstream,
            "tried": [],
            "tried_says": "",
        }


def report_of(
    replays: Sequence[Replay], *, sources: Sequence[str], lines: int, known_lines: int
) -> dict[str, Any]:
    """The complete report, as `--format json` prints it."""
    requests: list[dict[str, Any]] = []
    for server, replay in enumerate(replays):
        requests += requests_of(replay, server=server, first=len(requests))
    groups = groups_of(requests, replays[0].settings.engine)
    kinds = {group.cause: remedy_of(group.cause, group.engine).kind for group in groups}
    for request in requests:
        request["by"] = "client" if request["turn"] == "changed" else kinds.get(request["because"])
    known = {
        how_known(replay.log, replay.settings.spec)
        for replay in replays
        if replay.settings.is_played
    }
    comparable = [request for request in requests if request["agrees"] is not None]
    found: dict[str, Any] = {
        "format": FORMAT,
        "log": {
            "sources": list(sources),
            "lines": lines,
            "known_lines": known_lines,
            "broken": "",
            "long": "",
        },
        "servers": [_server_entry(replay) for replay in replays],
        "agreement": {
            "requests": len(requests),
            "comparable": len(comparable),
            "agreeing": sum(entry["agrees"] for entry in comparable),
            "played": sum(request["replayed"]["played"] for request in requests),
            "differing": [entry["number"] for entry in comparable if not entry["agrees"]],
            "declining": [
                entry["number"]
                for entry in comparable
                if entry["agrees"] and entry["replayed"]["declines"]
            ],
        },
        "totals": _totals_of(requests),
        "places": [asdict(place) for place in _places(replays)],
        "causes": [group.as_dict() for group in groups],
        "wrong": wrong_in(replays, requests),
        "requests": requests,
        "what_if": [],
        "tuned": None,
        "left_out_says": "",
        "bytes_say": next((words for how, words in WHOSE.items() if how in known), ""),
    }
    return found | {"answer": answer_of(found)}


def _places(replays: Sequence[Replay]) -> list[Place]:
    every = [request for replay in replays for request in replay.requests]
    least = float(replays[0].settings.values.get("slot_prompt_similarity", LEAST))
    return [*_replaced(replays), *places_of(list(enumerate(every)), least)]


def _replaced(replays: Sequence[Replay]) -> Iterator[Place]:
    """Calls of an instance whose first token differs from that of its content."""
    first = 0
    for replay in replays:
        numbers = range(first, first + len(replay.requests))
        first += len(replay.requests)
        new = [
            number
            for number, request in zip(numbers, replay.requests, strict=True)
            if request.observed.shared is not None and request.common == computed(0)
        ]
        if new and replay.settings.engine == PYTHON:
            again = sum(replay.requests[n - numbers[0]].lengths.processed.value or 0 for n in new)
            yield Place(
                token=0,
                requests=new,
                processed=again,
                sentence="Evaluated whole, as the first token was not the one that the instance "
                f"held: {len(new)} of {counted(len(numbers), 'call')}, {again:,} tokens.",
                advice=_cache_advice(replay),
            )


def _cache_advice(replay: Replay) -> str:
    if any(request.observed.notes for request in replay.requests):
        return "Its cache held no state that begins so: none was saved, or it was evicted."
    if replay.settings.window.value:
        return (
            "An instance holds one sequence. Give each conversation an instance of its own: with "
            "`set_cache`, this release answers wrongly on sliding-window models."
        )
    return (
        "An instance holds one sequence. If they continue earlier prompts, "
        "`set_cache(LlamaRAMCache())` keeps a state of each; the server's `--cache true` does too."
    )


def _server_entry(replay: Replay) -> dict[str, Any]:
    settings = replay.settings
    release = str(settings.release.value or "")
    return {
        "first_line": replay.log.first_line,
        "build": settings.build,
        "profile": settings.profile,
        "profile_known": settings.release.how,
        "played": settings.is_played,
        "model": {
            "preset": settings.preset.value,
            "how": settings.preset.how,
            "window": settings.window.value,
            "sizes": how_known(replay.log, settings.spec),
            "file": settings.model_file,
        },
        "options": {
            name: {
                "value": known.value,
                "how": known.how,
                "flag": setting(family_of(settings.engine), name, known.value, release),
            }
            for name, known in sorted(settings.options.items())
        },
        "invented": len(replay.invented),
        "requests": len(replay.requests),
        "missing": missing_of(replay),
        "cut": _cut(replay) if settings.is_played else "",
    }


def missing_of(replay: Replay) -> list[str]:
    """Facts that the log does not have."""
    settings = replay.settings
    if not settings.is_played:
        facts = FACTS_WITHOUT_REPLAY[settings.engine]
        missing = [f"The log of {settings.engine} is not replayed. {facts}"]
        if times := replay.log.retracted:
            missing.append(
                f"{counted(times, 'request')} lost memory during decode and started over "
                "(retraction); the tokens processed again are not counted."
            )
        return missing
    missing = []
    if replay.log.went_back >= OFTEN:
        missing.append(
            f"The server's clock goes back {replay.log.went_back} times: lines of several servers "
            f"seem to be mixed, or pieces of a log in another order. Give each its own file."
        )
    if cut := _cut(replay):
        missing.append(f"The log is cut: it lacks {cut}.")
    elif not replay.log.begins_at_start:
        missing.append(
            "The log does not begin with the server's start: what the server held then is unknown."
        )
    first = next((request for request in replay.requests if request.assumed is not None), None)
    if first is not None:
        missing.append(
            f"The replay assumes that slot {first.observed.slot} held one prompt of "
            f"{first.assumed:,} tokens before request {first.observed.number}; other settings are "
            f"replayed with it."
        )
    if not any(request.is_verbose for request in replay.requests):
        release = "This release prints" if replay.log.styles else "Recent releases print"
        missing.append(
            f"{release} restores, checkpoints and full re-processing only with `-lv 4`: "
            "start the server with it to have them in the log."
        )
    assumed = sorted(n for n, option in settings.options.items() if option.how == "assumed")
    if settings.preset.how == "assumed":
        missing.append(
            f"Not in the log, so assumed: the layers of the preset {settings.preset.value}. "
            "Name the model's with `--model`."
        )
    if settings.inferred:
        missing.append(settings.inferred)
    if assumed:
        missing.append(f"Not in the log, so assumed: {', '.join(assumed)}. Set with `--set`.")
    return missing


def _cut(replay: Replay) -> str:
    """The parts of requests that a log lacks, in one sentence; empty where it has all."""
    observed = [request.observed for request in replay.requests if not request.observed.too_long]
    parts = {
        "the start of {} and what the slot held": [o.number for o in observed if o.started_before],
        "the end of {} with its counts": [o.number for o in observed if not o.ended],
    }
    lacks = [
        part.format(numbered("request", numbers)) for part, numbers in parts.items() if numbers
    ]
    return ", and ".join(lacks)


def requests_of(replay: Replay, *, server: int, first: int) -> list[dict[str, Any]]:
    """The requests of one server in order of launch."""
    states = States()
    return [
        request_entry(request, server=server, number=first + request.observed.number)
        | {"stale": request.observed.stale or request.stale or states.stale(request)}
        for request in replay.requests
    ]


def request_entry(each: Rebuilt, *, server: int, number: int) -> dict[str, Any]:
    """A request: the log's numbers, the replay's, and the loss between matched and reused."""
    observed, lengths, replayed = each.observed, each.lengths, each.replayed
    cached = lengths.cached.value if lengths.cached.value is not None else replayed.cached
    why, equal = causes_of(each)
    turn, held = turn_of(each)
    if turn == "new" and equal is None and each.common.high:
        turn = "unknown"  # the log only bounds what the server held of it
    rule = rule_of(why)
    follow = turn == "changed" and held_by(observed, each.common, each.holder) is not None
    ends = min(held or 0, lengths.prompt.value or 0) if follow else 0
    file = None if each.submitted is None else each.submitted.file
    numbers = {"prompt_tokens": lengths.prompt, "common": each.common}
    numbers |= {"cached": lengths.cached, "processed": lengths.processed}
    return {
        "number": number,
        "server": server,
        "line": observed.line,
        "prompt_tokens": lengths.prompt.value,
        "cached": lengths.cached.value,
        "processed": lengths.processed.value,
        "slot": observed.slot if observed.slot >= 0 else None,
        "cancelled": observed.disconnected,
        "refused": observed.too_long,
        "parent": None if each.parent is None else number - observed.number + each.parent,
        "generated": observed.generated,
        "replayed": {
            "cached": replayed.cached,
            "processed": replayed.processed,
            "slot": replayed.slot,
            "error": replayed.error if each.is_played else None,
            "played": each.is_played,
            "declines": each.is_taken_to_decline,
        },
        "agrees": each.agrees if each.is_comparable else None,
        "known": {
            "prompt_tokens": lengths.prompt.how,
            "cached": lengths.cached.how,
            "processed": lengths.processed.how,
            "slot": _slot_known(observed),
            "common": each.common.how,
        },
        "bounds": {
            name: [known.low, known.high]
            for name, known in numbers.items()
            if known.how == "bounded"
        },
        "common": each.common.value,
        "common_with": each.holder,
        "equal": equal,
        "equal_with": replayed.equal_with if each.is_played and each.agrees else each.holder,
        "again": None if equal is None else max(0, equal - (cached or 0)),
        "again_changed": max(0, ends - (each.common.value or 0)),
        "turn": turn,
        "held": held,
        "because": rule,
        "by": None,
        "seconds": None if observed.prompt_ms is None else observed.prompt_ms / 1000,
        "why": why,
        "log_says": [FURTHER.format(parent=number - observed.number + each.parent)]
        if each.parent is not None
        else log_sentences(
            observed, each.common, lengths, (None if file is None else file[0]), each.holder
        ),
        "checkpoints": [
            {"pos_min": low, "pos_max": high, "n_tokens": n} for low, high, n in observed.created
        ],
    }


def turn_of(each: Rebuilt) -> tuple[str, int | None]:
    """What a request is to the tokens that its slot held, and their number, or a lower bound.

    A checkpoint that was tried lies in the slot's tokens: they go on at least as far.
    """
    at, whole, observed = each.common.value, each.lengths.prompt.value, each.observed
    held = None if at is None else held_by(observed, each.common, each.holder)
    least = max((high + 1 for _, high, _ in observed.checked), default=None)
    tokens = least if held is None else round(held)
    if observed.too_long:
        return "refused", tokens
    if at is None or whole is None:
        return "unknown", tokens
    if not at:
        return ("new" if each.common.is_sure or each.is_played else "unknown"), tokens
    if at >= whole:
        return "repeats", tokens
    if tokens is None or (held is None and tokens <= at):
        return "shares", None
    if at >= tokens:
        return "continues", tokens
    return "changed" if 2 * at >= min(tokens, whole) else "other", tokens


def rule_of(why: Sequence[Mapping[str, Any]]) -> str | None:
    """The rule that cost a request most."""
    worst = max(_net_losses(why), key=lambda loss: loss["from"] - loss["to"], default=None)
    return None if worst is None else worst["rule"]


def _slot_known(observed: Observed) -> str:
    if observed.slot < 0:
        return "unknown"
    return "assumed" if observed.started_before else "printed"


def causes_of(each: Rebuilt) -> tuple[list[dict[str, Any]], int | None]:
    """Causes of a request's loss with their tokens, from the replay or the log's own lines."""
    if each.parent is not None:  # they are its parent's
        return [], None
    observed = each.observed
    seen = observed.forced or bool(observed.checked)
    assumed = seen and (each.assumed is not None or each.is_open)
    if observed.started_before and not (each.common.is_sure or each.common.value):
        return losses_of(observed, UNKNOWN, each.lengths), None
    if each.is_played and each.agrees and not each.is_taken_to_decline and not assumed:
        return [loss.as_dict() for loss in each.replayed.losses], each.replayed.equal
    losses = losses_of(each.observed, each.common, each.lengths)
    return losses, losses[0]["from"] if losses else None


@dataclass(slots=True)
class States:
    """Checkpoints that outlived their tokens, by slot."""

    kept: dict[int, dict[int, str]] = field(default_factory=dict)

    def stale(self, each: Rebuilt) -> str | None:
        """Reason why a request was answered from another prompt's state, if it was."""
        slot = each.replayed.slot if each.replayed.slot is not None else each.observed.slot
        found: str | None = None
        for event in each.replayed.events:
            if isinstance(event, CheckpointRestored):
                reason = self.kept.get(slot, {}).get(int(event.n_tokens))
                found = reason if reason is not None and each.agrees else found
            elif isinstance(event, CheckpointKept):
                self.kept.setdefault(slot, {})[int(event.n_tokens)] = str(event.sentence)
        return found


def _totals_of(requests: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """Known sums over all requests that were not refused.

    prompt tokens = reused + processed + unknown; a prompt whose length is not sure counts with what
    is known of it. A number that no request has is None.
    """
    refused = [request for request in requests if request["refused"]]
    others = [entry for entry in requests if not entry["refused"] and entry["parent"] is None]
    cached = sum(other["cached"] or 0 for other in others)
    processed = sum(other["processed"] or 0 for other in others)
    sure = [other for other in others if other["known"]["prompt_tokens"] in {"printed", "computed"}]
    unknown = sum(
        entry["prompt_tokens"] - (entry["cached"] or 0) - (entry["processed"] or 0)
        for entry in sure
    )
    whole = cached + processed + unknown
    known = any(other["replayed"]["played"] for other in others) or _has_any(others, "again")
    return {
        "requests": len(requests),
        "prompt_tokens": whole if whole or sure or not others else None,
        "cached": cached if _has_any(others, "cached") else None,
        "processed": processed if _has_any(others, "processed") else None,
        "unknown": unknown,
        "again": sum(request["again"] or 0 for request in requests) if known else None,
        "again_at_most": sum(map(_again_at_most, requests)) if known else None,
        "again_changed": sum(request["again_changed"] for request in requests),
        "again_unknown": sum(map(_again_unknown, others)),
        "untold": sum(other["cached"] is None for other in others),
        "without_length": len(others) - len(sure),
        "further": sum(request["parent"] is not None for request in requests),
        "refused": len(refused),
        "refused_tokens": sum(entry["prompt_tokens"] or 0 for entry in refused),
    }


def _has_any(requests: Sequence[Mapping[str, Any]], key: str) -> bool:
    return not requests or any(request[key] is not None for request in requests)


def _again_at_most(request: Mapping[str, Any]) -> int:
    bounds, again = request["bounds"].get("common"), int(request["again"] or 0)
    if not bounds or request["cached"] is None:
        return again
    return max(again, int(bounds[1] - request["cached"]))


def _again_unknown(request: Mapping[str, Any]) -> int:
    """Prefilled tokens of which the log does not say, nor bound, whether the server held them."""
    told = request["again"] is not None or request["turn"] != "unknown"
    bounded = bool(request["bounds"].get("common")) and request["cached"] is not None
    return 0 if told or bounded else int(request["processed"] or 0)


def groups_of(requests: Sequence[Mapping[str, Any]], engine: str) -> list[Group]:
    """Causes over all requests, largest first, net of regained tokens."""
    groups: dict[str, Group] = {}
    for request in requests:
        for loss in _net_losses(request["why"]):
            group = groups.setdefault(loss["rule"], Group(loss["rule"], engine=engine))
            group.tokens += loss["from"] - loss["to"]
            group.requests.append(request["number"])
            group.sentence = group.sentence or loss["sentence"]
    return sorted(groups.values(), key=lambda group: (-group.tokens, group.cause))


def _net_losses(why: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Net losses: tokens regained by a later cause are subtracted from the earlier one."""
    left: list[dict[str, Any]] = []
    for loss in why:
        gained = loss["to"] - loss["from"]
        if gained <= 0:
            left.append(dict(loss))
            continue
        while gained > 0 and left:
            share = min(gained, left[-1]["from"] - left[-1]["to"])
            left[-1]["to"] += share
            gained -= share
            if left[-1]["from"] > left[-1]["to"]:
                break
            left.pop()
    return [loss for loss in left if loss["from"] > loss["to"]]


def worst(requests: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """The requests with the most reprocessed matching tokens.

    Then those of unknown lengths: each that the log says is reprocessed, or all of a short log.
    """
    lost = sorted(
        (request for request in requests if request["again"]), key=lambda request: -request["again"]
    )
    unknown = [request for request in requests if request["again"] is None and request["log_says"]]
    is_short = len(requests) <= count
    return [*lost, *(entry for entry in unknown if is_short or FORCED in entry["log_says"])][:count]
