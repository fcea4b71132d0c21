"""Prompts with exactly the common prefixes that a log proves, replayed in turn.

    held      [ text 4 ............ text 5 ..... )      what the replay's slot, or an entry, holds
    prompt    [ text 4 ..... )( text 9 ......... )      as much of it as the log says, then new
              0          common               length

Where the log allows several candidates (a ratio of three decimals, no line at all), each is tried
on a copy of the server, and the first whose answer is the log's is taken.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, islice
from typing import Final, TypeAlias

from cachesim.engines.llamacpp.vocabulary.events import CheckpointCreated
from cachesim.engines.tokens import LONGEST, Rope
from cachesim.why.infer.evidence import (
    Interval,
    Lengths,
    as_printed,
    common_with_holder,
    counts_of,
    held_before,
    lengths_of,
    share_done,
    with_length_from_ratios,
)
from cachesim.why.infer.settings import Settings
from cachesim.why.read.lines import prints_checkpoints, prints_depth
from cachesim.why.read.observed import (
    OVERWRITTEN,
    UNKNOWN,
    Known,
    LogEvent,
    Observed,
    ServerLog,
    bounded,
    computed,
)
from cachesim.why.rebuild.overwritten import counts_alone
from cachesim.why.replay.player import Player, ReplayRequest
from cachesim.why.replay.replayed import (
    BEFORE,
    BEFORE_REPLY,
    FRESH,
    REPLY,
    Hints,
    Rebuilt,
    Replay,
    owner_of,
    place_of,
    text_of,
)


def note_prefixes(
    replay: Replay, request: Observed, prompt: Rope, slots: Sequence[Rope], entries: Sequence[Rope]
) -> bool:
    """Record the requests that need another beginning in the next pass; True if there are any."""
    is_short = False
    for rope, common in _printed_prefixes(request, slots, entries):
        at = prompt.common(rope)
        if at >= min(common, len(rope), len(prompt)):
            continue
        is_short = True
        stale = replay.hints.prefixes.get(request.number)
        if stale is not None and at < prompt.common(stale):  # of a text that begins otherwise now
            known = replay.found.prefixes.get(request.number)
            if known is None or len(known) < common:
                replay.found.prefixes[request.number] = rope[:common]
            continue
        one, other = place_of(prompt, at)[0], place_of(rope, at)[0]
        later, earlier = (one, rope) if one > other else (other, prompt)
        owner, use = owner_of(later)
        if use == FRESH and 0 <= owner <= request.number:
            known = replay.found.prefixes.get(owner)
            if known is None or len(known) < common:
                replay.found.prefixes[owner] = earlier[:common]
    return is_short


def _printed_prefixes(
    request: Observed, slots: Sequence[Rope], entries: Sequence[Rope]
) -> Iterator[tuple[Rope, int]]:
    for number, common in request.slot_common.items():
        if number < len(slots):
            yield slots[number], common
    held = slots[request.slot] if request.slot < len(slots) else Rope()
    sim = request.sim if request.sim is not None else request.search.sim
    bounds = counts_of(sim, request.n_tokens)
    if bounds is not None and len(held):
        yield held, bounds.low
    remaining = iter(entries)
    for compared in request.search.compared:
        for entry in remaining:
            if len(entry) == compared.n_tokens:
                yield entry, compared.lcp
                break


Possible: TypeAlias = tuple[Rope, str, Interval, bool]
"""A holder, its name, its largest common prefix with the prompt, and whether the cache is wanted.
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible prompt: its prefix, and the slot or entry that holds it."""

    prompt: Rope
    common: Known
    holder: str
    cache_prompt: bool = True
    goes_on: bool = False  # it has all of what it shares something with
    at_joint: bool = False  # it parts from that where another prompt or reply did
    holder_length: int = 0  # tokens of the prompt-cache entry that holds it


def with_entries(
    request: Observed, whole: int, entries: Sequence[Rope], exact: Known
) -> Iterator[Possible]:
    """Parked conversations of the search."""
    search = request.search
    if search.found_keep is not None:
        for index in range(len(entries) - 1, -1, -1):
            entry = entries[index]
            bounds = counts_of(search.found_sim, whole)
            bounds = bounds and bounds.meet(counts_of(search.found_keep, len(entry)))
            if bounds is not None and counts_of(search.found_keep, len(entry)) is not None:
                yield entry, f"{ENTRY} {index}", _narrowed(bounds, exact), True
    best = max(search.compared, key=lambda compared: compared.lcp, default=None)
    if best is not None and best.lcp > 0:
        for index, entry in enumerate(entries):
            if len(entry) == best.n_tokens and best.lcp <= whole:
                name = f"{ENTRY} {index}"
                yield entry, name, Interval(best.lcp, best.lcp), True


def with_slot(request: Observed, whole: int, held: Rope, exact: Known) -> Iterator[Possible]:
    """Candidates that share tokens with the slot."""
    if not len(held):
        return
    name = f"slot {request.slot}"
    sim = request.sim if request.sim is not None else request.search.sim
    keep = request.keep if request.sim is not None else request.search.keep
    bounds = counts_of(sim, whole)
    seen = request.slot_common.get(request.slot)
    if seen is not None and not request.search.found_keep:
        bounds = Interval(seen, seen)
    by_keep = counts_of(keep, len(held))
    both = bounds.meet(by_keep) if bounds is not None else by_keep
    bounds = both or bounds
    if bounds is None and exact.value is None:
        return
    limit = Interval(0, min(whole, len(held)))
    bounds = (bounds or limit).meet(limit)
    if bounds is not None:
        yield held, name, _narrowed(bounds, exact), True
        if exact.value is not None and exact.value not in bounds:
            yield held, name, bounds, False  # the request wanted nothing of the cache


def guessed(
    rebuilt: Rebuilt, held: Rope, entries: Sequence[Rope], *, known: int
) -> Iterator[Possible]:
    """Candidates without a line in the log: any holder with the cached tokens.

    More is cached than the prompt and its slot have in common at most (`known`): then a parked
    conversation was loaded, though the log's level does not print it.
    """
    cached = rebuilt.lengths.cached.value
    whole = rebuilt.lengths.prompt.value or 0
    if not cached or (rebuilt.observed.choice == "similarity" and cached <= known):
        return
    names = [(entry, f"{ENTRY} {i}") for i, entry in enumerate(entries)][::-1]
    if rebuilt.observed.choice != "similarity":  # else a ratio says what the slot shares
        names.insert(0, (held, f"slot {rebuilt.observed.slot}"))
    for rope, name in names:
        if len(rope) >= cached:
            yield rope, name, Interval(cached, min(whole, len(rope))), True


def _narrowed(bounds: Interval, exact: Known) -> Interval:
    if exact.value is None:
        return bounds
    low = exact.value if exact.low is None else exact.low
    high = exact.value if exact.high is None else exact.high
    return bounds.meet(Interval(low, high)) or bounds


def likely(
    joints: Sequence[int],
    held: int,
    whole: int,
    cached: int | None,
    bounds: Interval,
    *,
    one: bool,
) -> list[int]:
    """Lengths within bounds, sorted: ends of texts and cached lengths first."""
    likely = [whole] if one else []
    likely += [held]
    if cached is not None:
        likely += [cached, cached + 1]
    likely += reversed(joints)
    likely += [bounds.near((bounds.low + bounds.high) // 2), bounds.low, bounds.high]
    return list(dict.fromkeys(length for length in likely if length in bounds))[:6]


def joints_of(rope: Rope) -> list[int]:
    """Offsets of the boundaries between a prompt's texts."""
    return list(accumulate(last - first for _, first, last in rope.runs))


def with_moved(prompt: Rope, held: Rope, request: Observed) -> Rope:
    """A prompt's prefix, and the chunks moved behind it (`--cache-reuse`).

    held      [ a ......... )( b .. )( c ......... )
    prompt    [ a ......... )( c ......... )( new  )      b is gone: c is moved to the left
    """
    longer = prompt[:]
    for was, at, size in request.moved:
        if at == len(longer) and was + size <= len(held):
            longer += held[was : was + size]
    return longer


def matches_choice(request: Observed, candidate: Candidate, held: Rope, least: float) -> bool:
    """True if the slot is the choice of the rule that the log names.

    By age only where no slot has more than the `least` part of the prompt (0 switches that off); by
    similarity where it has no more than the printed ratio says. (It may have more than is known.)
    """
    whole, common = len(candidate.prompt), candidate.prompt.common(held)
    if request.choice == "age":
        return not least or common <= least * whole
    bounds = counts_of(request.sim, whole) if request.choice == "similarity" else None
    return bounds is None or common <= bounds.high


def declined(request: Observed, found: Sequence[Possible], *, prints_depth: bool) -> bool:
    """True for a request without a cache (`cache_prompt: false`), by its lines.

    Tokens were equal, and yet the prompt was begun at position 0 without a word on why: checkpoints
    were erased against 0, or (in May) no line says how deep memory reaches.
    """
    equal = max((bounds.low for _, _, bounds, _ in found), default=0)
    if equal == 0 or request.forced or request.refused_cut:
        return False
    if request.restored is not None or request.checked:
        return False
    if any(following == 0 for _, following in request.erased):
        return True
    silent = prints_depth and request.depth is None and request.first_cut == 0
    return silent and request.search.found_keep is None


TURN: Final = 3
"""Tokens between a reply and the next message, or before its text."""

SHORTEST: Final = 6
"""Tokens of the shortest message with its template."""


def starts_in(marks: Mapping[int, AbstractSet[int]], prompt: Rope) -> tuple[int, ...]:
    """Known starts of user messages in a prompt."""
    starts: list[int] = []
    at = 0
    if not marks:
        return ()
    for text, first, last in prompt.runs:
        places = marks.get(text, ())
        starts += (at + place - first for place in places if first <= place < last)
        at += last - first
    return tuple(sorted(starts))


def mark_states(replay: Replay, rebuilt: Rebuilt, prompt: Rope, *, accepts_spans: bool) -> None:
    """Explain checkpoints that nothing else explains by starts of user messages.

    `accepts_spans`: the release takes them there.
    """
    request = rebuilt.observed
    if not (request.created or request.dropped) or not accepts_spans:
        return
    whole = len(prompt)
    options = replay.settings.values
    ubatch = int(options.get("ubatch_size", 512))
    batch = int(options.get("batch_size", 2048))
    cached = rebuilt.lengths.cached.value or 0
    usual = {whole - 4, whole - 4 - ubatch, cached}
    for _, _, place in request.created:
        of_a_batch = (place - cached) % batch == 0
        if place not in usual and not of_a_batch and cached < place < whole:
            text, offset = place_of(prompt, place)
            replay.found.marks.setdefault(text, set()).add(offset)
    if rebuilt.is_verbose:
        return
    # Unasked, a server names a checkpoint only when it drops it; an earlier prompt may have it.
    for earlier in replay.requests:
        ends = earlier.lengths.prompt.value or 0
        usual |= {ends - 4, ends - 4 - ubatch}
    for _, _, place in request.dropped:
        if place not in usual and 0 < place < whole:
            text, offset = place_of(prompt, place)
            replay.found.marks.setdefault(text, set()).add(offset)


def mark_turn(
    replay: Replay, rebuilt: Rebuilt, candidate: Candidate, *, accepts_spans: bool
) -> None:
    """Mark the next turn of a chat without message lines: after the reply's last token and
    the template's end of a message (`<|im_end|>`, a line end).
    """
    request, whole = rebuilt.observed, len(candidate.prompt)
    common = candidate.common.value or 0
    if accepts_spans or not request.is_chat or not candidate.goes_on:
        return
    if common >= whole - TURN:
        return
    text, place = place_of(candidate.prompt, common)
    if place == 0 and text not in replay.hints.no_turn:
        replay.found.marks.setdefault(text, set()).add(TURN)


def mark_opening(replay: Replay, rebuilt: Rebuilt, candidate: Candidate) -> None:
    """Mark the message before the divergence of chats that share their first text.

    earlier   [ <|im_start|> system ... <|im_end|> ][ <|im_start|> user <nl> )( How ... )
    chat      [ <|im_start|> system ... <|im_end|> ][ <|im_start|> user <nl> )( Why ... )

    So a message of the user begins its mark before the first place where two part.
    """
    if not rebuilt.observed.is_chat or candidate.goes_on or candidate.at_joint:
        return
    common = candidate.common.value or 0
    if common < SHORTEST + TURN or common >= len(candidate.prompt):
        return
    text, last = place_of(candidate.prompt, common - 1)
    place = last + 1 - TURN
    is_first = common - 1 - last <= 1  # all chats have their first token in common
    if is_first and owner_of(text)[1] == FRESH:
        replay.found.openings[text] = min(place, replay.found.openings.get(text, place))


def refute_turn(replay: Replay, rebuilt: Rebuilt) -> None:
    """Remove an assumed turn whose checkpoint no line shows.

    A release that logs every saved state would have saved one at a message's start.
    """
    if rebuilt.submitted is None:
        return
    shown = {place for _, _, place in rebuilt.observed.created}
    for event in rebuilt.replayed.events:
        if not isinstance(event, CheckpointCreated) or event.slot != rebuilt.observed.slot:
            continue
        if event.n_tokens in shown or event.n_tokens not in rebuilt.submitted.user_starts:
            continue
        text, place = place_of(rebuilt.submitted.prompt, int(event.n_tokens))
        if place == TURN:
            replay.found.no_turn.add(text)


def _may_be_comparable(lengths: Lengths) -> bool:
    """True if a request's reuse is in the log, or may follow from what is held."""
    return lengths.cached.value is not None or lengths.prompt.how == "bounded"


ENTRY: Final = "prompt cache entry"

LEAST_KEPT: Final = 0.25
"""Part of a prompt-cache entry that a request keeps at least, or it is not loaded."""


def _explains(candidate: Candidate, cached: int) -> int:
    """How well a prompt explains so many reused tokens, where no trial reuses as many.

    The next pass may find the state from which they were resumed. Of an entry, enough is kept.
    """
    common = candidate.common.value or 0
    if common < cached:
        return 0
    return 2 if not candidate.holder_length or common >= LEAST_KEPT * candidate.holder_length else 1


MOST_CANDIDATES: Final = 24
"""Most candidates tried for a request."""


class Rebuilder:
    """Replay of a log's events with a player."""

    def __init__(
        self,
        log: ServerLog,
        settings: Settings,
        hints: Hints,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.log = log
        self.settings = settings
        self.window = int(settings.window.value or 0)
        self.verbose = prints_checkpoints(log.styles) or any(
            r.cuts or r.created or r.checked or r.restored or r.erased or r.forced
            for r in log.requests
        )
        self.player = Player(settings.profile, settings.spec, settings.values)
        self.hints = hints
        marks = {text: set(places) for text, places in hints.marks.items()}
        for text, place in hints.openings.items():
            marks.setdefault(text, set()).add(place)
        self.player.saved_after = frozenset(hints.files.values())
        self.replay = Replay(log, settings, hints, Hints(marks=marks), moves=self.player.moves)
        self.progress = progress
        self._next = 0  # the moment to run next
        self._running: list[int] = []
        self._children: list[Rebuilt] = []  # launched, and their parent not yet
        self._goal = 0  # requests that have to agree, or the replay is given up
        self._may_agree = 0  # requests that agree or are not replayed yet

    def play(self, *, goal: int = 0, first: int | None = None) -> Replay:
        """Replay every event in order, or those of the `first` requests.

        Ends where fewer than `goal` requests can agree.
        """
        if goal:
            self._goal = goal
            lengths = map(self._lengths, self.log.requests[:first])
            self._may_agree = sum(map(_may_be_comparable, lengths))
        self.advance(whole=True, first=first)
        for number in self._running:
            self._finish(number)
        return self.replay

    def advance(self, *, whole: bool = False, first: int | None = None) -> list[int]:
        """Continue the replay, and return the requests that ended.

        Unless the log is `whole`, up to the first request whose lines are still being written.
        """
        ended: list[int] = []
        while self._next < len(self.log.events):
            if self._goal and self._may_agree < self._goal:
                break
            event = self.log.events[self._next]
            if event.what == "launched":
                request = self.log.requests[event.request]
                if not (whole or request.ended) or event.request == first:
                    break
                rebuilt = Rebuilt(request, self._lengths(request), is_verbose=self.verbose)
                self.replay.requests.append(rebuilt)
                self._arrive(self._running, event)
                if self._launch(rebuilt):
                    self._running.append(event.request)
            elif event.what == "erased" and event.slot < len(self.player.held()[0]):
                self.player.erase(event.slot)
                self.replay.order.append(("erase", event.slot))
            elif event.what != "erased":
                number = event.request
                if number in self._running:
                    self._finish(number)
                    self._running.remove(number)
                ended.append(event.request)
            self._next += 1
            if self.progress is not None:
                self.progress(event.line)
        return ended

    def _lengths(self, request: Observed) -> Lengths:
        lengths = lengths_of(request)
        shown = self.hints.lengths.get(request.number)
        if shown is None or lengths.prompt.is_sure:
            return lengths
        return replace(lengths, prompt=Known(shown, "assumed"))

    def _finish(self, number: int) -> None:
        rebuilt = self.replay.requests[number]
        rebuilt.replayed = self.player.run_until(number)
        children = [request for request in self.replay.requests if request.parent == number]
        for child, replayed in zip(children, rebuilt.replayed.children, strict=False):
            child.replayed, child.common, child.holder = replayed, rebuilt.common, rebuilt.holder
        if self.verbose and self.player.accepts_spans:
            refute_turn(self.replay, rebuilt)
        if _may_be_comparable(rebuilt.lengths) and not rebuilt.agrees:
            self._may_agree -= 1
        self.replay.order.append(("finish", number))

    def new_text(self, request: Observed, use: int, length: int) -> Rope:
        """Unique tokens, the same in every pass."""
        return Rope.of(text_of(request.number, use), min(length, LONGEST))

    # --- launching

    def _arrive(self, running: Sequence[int], event: LogEvent) -> None:
        """Advance running requests to their logged progress at the next arrival.

        Where the log prints every turn of a prompt, as many are taken: which of a window's cells
        were overwritten depends on the turns that prompts share. Else the time tells.
        """
        now = self.log.requests[event.request].launched_at
        batch = int(self.settings.values.get("batch_size", 2048))
        printed = {number: (made, turns) for number, made, turns in event.made}
        for number in running:
            turns = printed.get(number, (0, 0))[1]
            self.player.take_turns(number, self.log.requests[number].slot, turns)
        for number in running:
            observed = self.log.requests[number]
            share = share_done(observed, now)
            lengths = self.replay.requests[number].lengths
            whole, cached = lengths.prompt.value, lengths.cached.value or 0
            made, turns = printed.get(number, (0, 0))
            if share is None or whole is None:
                if self.player.made_for(number, observed.slot, CheckpointCreated) < made:
                    self.player.advance(turns=1, at_once=1)
                continue
            read, spoken = share
            if read >= 1.0:
                self.player.run_prompt(number)
                generated = max(1, int(spoken * (observed.generated or 1)) - 1)
                left = min(generated, self.player.spare_turns())
                if left > 0:
                    self.player.advance(turns=1, at_once=left)
            elif not turns and read * (whole - cached) >= batch:  # a batch is read as one
                self.player.read_until(
                    number, cached + int(read * (whole - cached)) // batch * batch
                )

    def _launch(self, rebuilt: Rebuilt) -> bool:
        request = rebuilt.observed
        if request.is_child:
            self._children.append(rebuilt)
            return False
        children, self._children = self._children, []
        if request.is_named and not self.verbose and self.player.swaps_busy_slots:
            met, before = partial(self._is_met, rebuilt), self.replay.requests[:-1]
            if alone := counts_alone(rebuilt, before, self.player, self.settings, met):
                rebuilt.lengths, rebuilt.stale = alone, OVERWRITTEN
        if rebuilt.lengths.prompt.value is None:
            return False
        for child in children:
            child.parent = request.number
        file: tuple[int, int] | None = None
        known = request.slot < len(self.player.held()[0])
        if known and request.number in self.hints.files:
            file = self.hints.files[request.number], request.slot
            self.player.read_back(str(file[0]), file[1])
        candidates = self._candidates(rebuilt)
        chosen = candidates[0]
        if len(candidates) > 1:
            chosen = self._tried(rebuilt, candidates)
        held = self.player.held()
        rebuilt.shares_less = note_prefixes(self.replay, request, chosen.prompt, *held)
        submitted = self._request_of(rebuilt, chosen)
        rebuilt.submitted = replace(submitted, file=file)
        rebuilt.common, rebuilt.holder = chosen.common, chosen.holder
        self.player.launch(submitted)
        self.replay.order.append(("launch", request.number))
        return True

    def _is_met(self, rebuilt: Rebuilt, lengths: Lengths) -> bool:
        """True if some prompt has these counts in the replay."""
        rebuilt = replace(rebuilt, lengths=lengths)
        for candidate in self._candidates(rebuilt):
            twin = self.player.fork()
            twin.launch(self._request_of(rebuilt, candidate, trial=True))
            if twin.run_until(rebuilt.observed.number).cached == lengths.cached.value:
                return True
        return False

    def _tried(self, rebuilt: Rebuilt, candidates: Sequence[Candidate]) -> Candidate:
        """The first candidate with the logged answer; else the first of all."""
        cached, slot = rebuilt.lengths.cached.value, rebuilt.observed.slot
        if cached is None:
            return candidates[0]
        fallback: Candidate | None = None
        for candidate in self._possible(candidates, cached):
            twin = self.player.fork()
            twin.launch(self._request_of(rebuilt, candidate, trial=True))
            result = twin.run_until(rebuilt.observed.number)
            if result.cached == cached and result.slot == slot:
                return candidate
            if fallback is None and result.cached == cached:
                fallback = candidate
        return fallback or max(candidates, key=lambda length: _explains(length, cached))

    def _possible(self, candidates: Sequence[Candidate], cached: int) -> Iterator[Candidate]:
        """The candidates of which a server can reuse so many tokens: a copy of it is large.

        Reuse ends where the prompt leaves what is held, before its last token, or at a saved state.
        """
        ends = self.player.ends_of_reuse()
        if ends is None or cached == 0 or cached in ends:
            yield from candidates
            return
        holders = list(chain(*self.player.held()))
        for candidate in candidates:
            last = len(candidate.prompt) - 1
            if any(min(holder.common(candidate.prompt), last) == cached for holder in holders):
                yield candidate

    def _request_of(
        self, rebuilt: Rebuilt, candidate: Candidate, *, trial: bool = False
    ) -> ReplayRequest:
        request = rebuilt.observed
        reply_length = self._reply_length(rebuilt, len(candidate.prompt))
        cancel = request.held_after if request.cancelled and not trial else None
        length = 1 if trial else max(1, reply_length, (cancel or 0) + 1)
        reply = self.new_text(request, REPLY, length)
        if not trial:
            accepts_spans = self.player.accepts_spans
            mark_states(self.replay, rebuilt, candidate.prompt, accepts_spans=accepts_spans)
            shown = accepts_spans and self.verbose and self.player.saves_every_turn
            mark_turn(self.replay, rebuilt, candidate, accepts_spans=shown)
            if not accepts_spans:
                mark_opening(self.replay, rebuilt, candidate)
        silent = request.choice == "unknown" and not request.started_before
        return ReplayRequest(
            number=request.number,
            prompt=candidate.prompt,
            reply=reply,
            slot=(request.slot if request.choice == "id" or silent else -1),
            cache_prompt=candidate.cache_prompt,
            completions=1 + self._children_of(request),
            user_starts=starts_in(self.replay.found.marks, candidate.prompt),
            cancel_at=cancel,
        )

    def _children_of(self, request: Observed) -> int:
        """Further completions of a request, launched just before it."""
        return sum(child.parent == request.number for child in self.replay.requests)

    def _reply_length(self, rebuilt: Rebuilt, prompt: int) -> int:
        request = rebuilt.observed
        if request.held_after is None or request.shifts:
            return request.generated or 1
        return max(1, request.held_after - prompt + 1)

    def _filled(self, request: Observed, prompt: Rope, holder: Rope, whole: int) -> Rope:
        """A prompt at its whole length: tokens determined by later requests, then new ones.

        Chats begin with the same token, whatever the template; where the log reports the common
        prefix, it includes that token.
        """
        prefix = self.hints.prefixes.get(request.number)
        if (
            not len(prompt)
            and prefix is None
            and request.is_chat
            and not self.verbose
            and whole > 1
        ):
            prompt = self.new_text(self.log.requests[0], FRESH, 1)
        at = len(prompt)
        if prefix is not None and prompt.common(prefix) == at < len(prefix):
            longer = prompt[:]
            longer += prefix[at : min(len(prefix), whole)]
            if holder.common(longer) == at:
                prompt = longer
        if len(prompt) < whole:
            prompt += self.new_text(request, FRESH, whole - len(prompt))
        return prompt

    # --- candidates

    def _candidates(self, rebuilt: Rebuilt) -> list[Candidate]:
        request = rebuilt.observed
        slots, entries = self.player.held()
        held = slots[request.slot] if 0 <= request.slot < len(slots) else Rope()
        if rebuilt.lengths.prompt.how == "bounded":
            rebuilt.lengths = with_length_from_ratios(rebuilt.lengths, request, held, entries)
        whole = rebuilt.lengths.prompt.value or 0
        self._note_file(request, held_before(request, whole), len(held))
        loads = request.search.found_keep is not None and len(entries) > 0
        if not len(held) and not loads and self._holds_something(request):
            held = self._invent(rebuilt, whole) or held
            slots, entries = self.player.held()
        exact = common_with_holder(request, whole, self.window, verbose=self.verbose)
        found: list[Possible] = []
        found += with_entries(request, whole, entries, exact)
        if request.search.found_keep is None:
            found += with_slot(request, whole, held, exact)
        if not self.verbose and request.choice != "unknown":
            most = max((bounds.high for _, _, bounds, _ in found), default=0)
            found += guessed(rebuilt, held, entries, known=most)
        if declined(request, found, prints_depth=prints_depth(self.log.styles)):
            found = [(rope, name, bounds, False) for rope, name, bounds, _ in found]
        elif rebuilt.lengths.cached.value == 0 and not (request.forced or request.checked):
            # or the request wanted nothing of the cache
            found += [(rope, name, bounds, False) for rope, name, bounds, _ in found]
        least = float(self.settings.values.get("slot_prompt_similarity", 0.1))
        spelt = self._spelt_out(rebuilt, found)
        fitting = (
            candidate for candidate in spelt if matches_choice(request, candidate, held, least)
        )
        candidates = list(islice(fitting, MOST_CANDIDATES)) or list(
            islice(self._spelt_out(rebuilt, found), MOST_CANDIDATES)
        )
        if not candidates:
            prompt = self._filled(request, Rope(), Rope(), whole)
            # Of a slot that the replay knows nothing of, the log may say what is shared with it.
            common = exact if exact.value else self._too_little(request, held, whole, least)
            if rebuilt.lengths.prompt.is_sure:
                common = as_printed(request, whole, common)
            holder = f"slot {request.slot}" if common.value else "nothing"
            candidates = [Candidate(prompt, common, holder)]
        return candidates

    def _too_little(self, request: Observed, held: Rope, whole: int, least: float) -> Known:
        if request.started_before and not len(held):  # what its slot held, no line says
            ends = [min(whole, tokens - 1 + self.window) for tokens, _ in request.erased]
            return Known(0, "bounded", 0, min(ends)) if ends else UNKNOWN
        if self.verbose or request.choice != "age":
            return computed(0)
        most = int(least * whole) if least else whole
        return bounded(0, 0, min(most, len(held)))

    def _note_file(self, request: Observed, held: Interval | None, replayed: int) -> None:
        """Note a restored file where the length differs from the replay's."""
        if held is None or replayed in held:
            return
        earlier = self.log.requests[: request.number]
        last = next(
            (observed for observed in reversed(earlier) if observed.slot == request.slot), None
        )
        if last is not None and (last.held_after or -1) in held:
            return  # what the slot held last; the replay differs
        fits = [observed.number for observed in earlier if (observed.held_after or -1) in held]
        if fits:
            self.replay.found.files.setdefault(request.number, fits[-1])

    def _holds_something(self, request: Observed) -> bool:
        if request.depth is not None:
            return request.depth[1] > 0
        return request.sim is not None or bool(request.checked)

    def _invent(self, rebuilt: Rebuilt, whole: int) -> Rope | None:
        request, length = rebuilt.observed, None
        if request.depth is not None:
            length = request.depth[1]
        elif request.search.saved is not None:
            length = request.search.saved
        elif request.sim is not None and request.keep is not None:
            common = counts_of(request.sim, whole)
            keep = float(request.keep) if request.keep.replace(".", "").isdigit() else 0.0
            if common is not None and keep > 0:
                length = round((common.low + common.high) / 2 / keep)
        elif request.checked and rebuilt.lengths.prompt.is_sure:
            # a checkpoint ends where the slot did, or before
            length = max(high for _, high, _ in request.checked) + 1
        if not length or self.player.dead:
            return None
        prompt = self.new_text(request, BEFORE, max(1, length))
        submitted = ReplayRequest(
            number=-1 - len(self.replay.invented),
            prompt=prompt,
            reply=self.new_text(request, BEFORE_REPLY, 1),
            slot=request.slot,
        )
        rebuilt.assumed = length
        self.replay.invented.append(submitted)
        self.player.launch(submitted)
        if self.player.run_until(submitted.number).error is not None:
            return None
        self.replay.order += [("launch", submitted.number), ("finish", submitted.number)]
        return prompt

    def _spelt_out(self, rebuilt: Rebuilt, found: Iterable[Possible]) -> Iterator[Candidate]:
        """The candidates, likeliest first; few of very many are ever asked for."""
        whole = rebuilt.lengths.prompt.value or 0
        cached = rebuilt.lengths.cached.value
        seen: set[tuple[str, int, bool]] = set()
        spelt: list[tuple[bool, int, Possible, int]] = []
        for possible in found:
            rope, name, bounds, cache_prompt = possible
            joints = joints_of(rope)
            lengths = likely(
                joints, len(rope), whole, cached, bounds, one=rebuilt.observed.one_token
            )
            rank = 0
            for common in lengths:
                which = (name, common, cache_prompt) if common else ("nothing", 0, True)
                if which not in seen:
                    seen.add(which)
                    spelt.append((common not in joints, rank, possible, common))
                    rank += 1
        for not_at_joint, _, (rope, name, bounds, cache_prompt), common in sorted(
            spelt, key=lambda piece: piece[:2]
        ):
            start = with_moved(rope[:common], rope, rebuilt.observed)
            yield Candidate(
                prompt=self._filled(rebuilt.observed, start, rope, whole),
                common=bounded(common, bounds.low, bounds.high),
                holder=name if common else "nothing",
                cache_prompt=cache_prompt,
                goes_on=0 < common == len(rope),
                at_joint=not not_at_joint,
                holder_length=len(rope) if name.startswith(ENTRY) else 0,
            )
