"""Prompts with exactly the common prefixes that a log proves, played as they are made.

    held      [ text 4 ............ text 5 ..... )      what the replay's slot, or an entry, holds
    prompt    [ text 4 ..... )( text 9 ......... )      as much of it as the log says, then new
              0          common               length

Where the log leaves several ways open (a ratio of three decimals, no line at all), each is tried on
a copy of the server, and the first whose answer is the log's is taken.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from cachesim.engines.rope import LONGEST, Rope
from cachesim.logs.evidence import (
    Interval,
    Lengths,
    common_with_holder,
    counts_of,
    held_before,
    lengths_of,
    share_done,
    with_length_from_ratios,
)
from cachesim.logs.grafts import note_grafts
from cachesim.logs.known import Known, bounded, computed
from cachesim.logs.marks import mark_opening, mark_states, mark_turn, refute_turn, starts_in
from cachesim.logs.observed import Moment, Observed, ServerLog
from cachesim.logs.player import Asked, Player
from cachesim.logs.replay import (
    BEFORE,
    BEFORE_REPLY,
    FRESH,
    REPLY,
    Hints,
    Rebuilt,
    Replay,
    text_of,
)
from cachesim.logs.settings import Settings
from cachesim.logs.styles import prints_checkpoints, prints_depth
from cachesim.logs.ways import (
    Possible,
    Way,
    declined,
    guessed,
    is_of_road,
    joints_of,
    likely,
    with_entries,
    with_moved,
    with_slot,
)

MOST_WAYS: Final = 24
"""Ways that are tried for one request."""


class Rebuilder:
    """Goes through a log's moments with a player."""

    def __init__(
        self,
        log: ServerLog,
        settings: Settings,
        hints: Hints,
        progress: Callable[[int], None] | None = None,
        *,
        likeliest_first: bool = True,
    ) -> None:
        self.log = log
        self.likeliest_first = likeliest_first
        self.settings = settings
        self.window = int(settings.window.value or 0)
        self.verbose = prints_checkpoints(log.styles) or any(
            r.cuts or r.created or r.checked for r in log.requests
        )
        self.player = Player(settings.profile, settings.spec, settings.values)
        self.hints = hints
        marks = {text: set(places) for text, places in hints.marks.items()}
        for text, place in hints.openings.items():
            marks.setdefault(text, set()).add(place)
        self.player.saved_after = frozenset(hints.files.values())
        self.replay = Replay(log, settings, hints=hints, marks=marks)
        self.progress = progress
        self._next = 0  # the moment to play next
        self._running: list[int] = []

    def play(self) -> Replay:
        """Every moment in order."""
        self.advance(whole=True)
        for number in self._running:
            self._finish(number)
        return self.replay

    def advance(self, *, whole: bool = False) -> list[int]:
        """Play on, and name the requests that ended.

        Unless the log is `whole`, up to the first request whose lines are still being written.
        """
        ended: list[int] = []
        while self._next < len(self.log.moments):
            moment = self.log.moments[self._next]
            if moment.what == "launched":
                request = self.log.requests[moment.request]
                if not (whole or request.ended):
                    break
                rebuilt = Rebuilt(request, self._lengths(request), is_told=self.verbose)
                self.replay.requests.append(rebuilt)
                self._arrive(self._running, moment)
                if self._launch(rebuilt):
                    self._running.append(moment.request)
            elif moment.what == "erased" and moment.slot < len(self.player.held()[0]):
                self.player.erase(moment.slot)
                self.replay.order.append(("erase", moment.slot))
            elif moment.what != "erased":
                self._end(moment.request)
                ended.append(moment.request)
            self._next += 1
            if self.progress is not None:
                self.progress(moment.line)
        return ended

    def _end(self, number: int) -> None:
        if number in self._running:
            self._finish(number)
            self._running.remove(number)

    def _lengths(self, request: Observed) -> Lengths:
        lengths = lengths_of(request)
        shown = self.hints.lengths.get(request.number)
        if shown is None or lengths.prompt.is_sure:
            return lengths
        return replace(lengths, prompt=Known(shown, "assumed"))

    def _finish(self, number: int) -> None:
        rebuilt = self.replay.requests[number]
        rebuilt.replayed = self.player.run_until(number)
        if self.verbose and self.player.knows_messages:
            refute_turn(self.replay, rebuilt)
        self.replay.order.append(("finish", number))

    def new_text(self, request: Observed, use: int, length: int) -> Rope:
        """Tokens that nothing else has; the same ones each time a log is gone through."""
        return Rope.of(text_of(request.number, use), min(length, LONGEST))

    # --- launching

    def _arrive(self, running: Sequence[int], moment: Moment) -> None:
        """Let those at work come as far as the log says they were when the next one came."""
        now = self.log.requests[moment.request].launched_at
        batch = int(self.settings.values.get("batch_size", 2048))
        for number in running:
            observed = self.log.requests[number]
            share = share_done(observed, now)
            lengths = self.replay.requests[number].lengths
            whole, cached = lengths.prompt.value, lengths.cached.value or 0
            if share is None or whole is None:
                made = dict(moment.made).get(number, 0)
                if self.player.checkpoints_made_for(number, observed.slot) < made:
                    self.player.advance(turns=1, at_once=1)
                continue
            read, spoken = share
            if read >= 1.0:
                self.player.run_prompt(number)
                generated = max(1, int(spoken * (observed.generated or 1)) - 1)
                self.player.advance(turns=1, at_once=generated)
            elif read * (whole - cached) >= batch:  # a batch is read as one
                self.player.read_until(
                    number, cached + int(read * (whole - cached)) // batch * batch
                )

    def _launch(self, rebuilt: Rebuilt) -> bool:
        request, lengths = rebuilt.observed, rebuilt.lengths
        if lengths.prompt.value is None or request.is_child:
            return False
        file: tuple[int, int] | None = None
        known = request.slot < len(self.player.held()[0])
        if known and request.number in self.hints.files:
            file = self.hints.files[request.number], request.slot
            self.player.read_back(str(file[0]), file[1])
        ways = self._ways(rebuilt)
        if not self.likeliest_first:
            ways = ways[::-1]
        chosen = ways[0]
        if len(ways) > 1:
            chosen = self._tried(rebuilt, ways)
        rebuilt.ways = len(ways)
        note_grafts(self.replay, request, chosen.prompt, *self.player.held())
        asked = self._asked(rebuilt, chosen)
        rebuilt.asked = replace(asked, file=file)
        rebuilt.common, rebuilt.holder = chosen.common, chosen.holder
        self.player.launch(asked)
        self.replay.order.append(("launch", request.number))
        return True

    def _tried(self, rebuilt: Rebuilt, ways: Sequence[Way]) -> Way:
        """The first way whose answer is the log's; the first of all where none is."""
        cached, slot = rebuilt.lengths.cached.value, rebuilt.observed.slot
        if cached is None:
            return ways[0]
        fallback: Way | None = None
        for way in ways:
            twin = self.player.fork()
            twin.launch(self._asked(rebuilt, way, trial=True))
            result = twin.run_until(rebuilt.observed.number)
            if result.cached == cached and result.slot == slot:
                return way
            if fallback is None and result.cached == cached:
                fallback = way
        return fallback or ways[0]

    def _asked(self, rebuilt: Rebuilt, way: Way, *, trial: bool = False) -> Asked:
        request = rebuilt.observed
        reply_length = self._reply_length(rebuilt, len(way.prompt))
        cancel = request.held_after if request.cancelled and not trial else None
        length = 1 if trial else max(1, reply_length, (cancel or 0) + 1)
        reply = self.new_text(request, REPLY, length)
        if not trial:
            told = self.player.knows_messages
            mark_states(self.replay, rebuilt, way.prompt, told=told)
            shown = told and self.verbose and self.player.saves_every_turn
            mark_turn(self.replay, rebuilt, way, told=shown)
            if not told:
                mark_opening(self.replay, rebuilt, way)
        return Asked(
            number=request.number,
            prompt=way.prompt,
            reply=reply,
            slot=self._slot_wanted(request),
            cache_prompt=way.cache_prompt,
            user_starts=starts_in(self.replay.marks, way.prompt),
            cancel_at=cancel,
        )

    def _slot_wanted(self, request: Observed) -> int:
        """The slot that the client asked for; the older releases print no line of it."""
        silent = request.road == "unknown" and not request.started_before
        return request.slot if request.road == "id" or silent else -1

    def _reply_length(self, rebuilt: Rebuilt, prompt: int) -> int:
        request = rebuilt.observed
        if request.held_after is None or request.shifts:
            return request.generated or 1
        return max(1, request.held_after - prompt + 1)

    def _filled(self, request: Observed, prompt: Rope, holder: Rope, whole: int) -> Rope:
        """A prompt to its whole length: what a later request showed of it, then new tokens.

        Chats begin with the same token, whatever the template; where the log tells what is equal,
        it tells of that too.
        """
        graft = self.hints.grafts.get(request.number)
        if not len(prompt) and graft is None and request.is_chat and not self.verbose and whole > 1:
            prompt = self.new_text(self.log.requests[0], FRESH, 1)
        at = len(prompt)
        if graft is not None and prompt.common(graft) == at < len(graft):
            longer = prompt[:]
            longer += graft[at : min(len(graft), whole)]
            if holder.common(longer) == at:
                prompt = longer
        if len(prompt) < whole:
            prompt += self.new_text(request, FRESH, whole - len(prompt))
        return prompt

    # --- ways

    def _ways(self, rebuilt: Rebuilt) -> list[Way]:
        request = rebuilt.observed
        slots, parked = self.player.held()
        held = slots[request.slot] if 0 <= request.slot < len(slots) else Rope()
        if rebuilt.lengths.prompt.how == "bounded":
            rebuilt.lengths = with_length_from_ratios(rebuilt.lengths, request, held, parked)
        whole = rebuilt.lengths.prompt.value or 0
        self._note_file(request, held_before(request, whole), len(held))
        loads = request.search.found_keep is not None and len(parked) > 0
        if not len(held) and not loads and self._holds_something(request):
            held = self._invent(request, whole) or held
            slots, parked = self.player.held()
        exact = common_with_holder(request, whole, self.window, verbose=self.verbose)
        found: list[Possible] = []
        found += with_entries(request, whole, parked, exact)
        if request.search.found_keep is None:
            found += with_slot(request, whole, held, exact)
        if not self.verbose and request.road != "unknown":
            most = max((bounds.high for _, _, bounds, _ in found), default=0)
            found += guessed(rebuilt, held, parked, known=most)
        if declined(request, found, prints_depth=prints_depth(self.log.styles)):
            found = [(rope, name, bounds, False) for rope, name, bounds, _ in found]
        elif rebuilt.lengths.cached.value == 0 and not (request.forced or request.checked):
            # or the request wanted nothing of the cache
            found += [(rope, name, bounds, False) for rope, name, bounds, _ in found]
        ways = list(self._spelt_out(rebuilt, found))
        least = float(self.settings.values.get("slot_prompt_similarity", 0.1))
        ways = [each for each in ways if is_of_road(request, each, held, least)] or ways
        if not ways:
            prompt = self._filled(request, Rope(), Rope(), whole)
            if exact.value:  # something that the replay knows nothing of
                return [Way(prompt, exact, f"slot {request.slot}")]
            ways = [Way(prompt, self._too_little(request, held, whole, least), "nothing")]
        return ways[:MOST_WAYS]

    def _too_little(self, request: Observed, held: Rope, whole: int, least: float) -> Known:
        if self.verbose or request.road != "age":
            return computed(0)
        most = int(least * whole) if least else whole
        return bounded(0, 0, min(most, len(held)))

    def _note_file(self, request: Observed, held: Interval | None, replayed: int) -> None:
        """Another length than the replay's is that of a former slot: a file was read back."""
        if held is None or replayed in held:
            return
        earlier = self.log.requests[: request.number]
        fits = [each.number for each in earlier if (each.held_after or -1) in held]
        if fits:
            self.replay.files.setdefault(request.number, fits[-1])

    def _holds_something(self, request: Observed) -> bool:
        if request.depth is not None:
            return request.depth[1] > 0
        return request.sim is not None or bool(request.checked)

    def _invent(self, request: Observed, whole: int) -> Rope | None:
        length = None
        if request.depth is not None:
            length = request.depth[1]
        elif request.search.saved is not None:
            length = request.search.saved
        elif request.sim is not None and request.keep is not None:
            common = counts_of(request.sim, whole)
            keep = float(request.keep) if request.keep.replace(".", "").isdigit() else 0.0
            if common is not None and keep > 0:
                length = round((common.low + common.high) / 2 / keep)
        if not length or self.player.dead:
            return None
        prompt = self.new_text(request, BEFORE, max(1, length))
        asked = Asked(
            number=-1 - len(self.replay.invented),
            prompt=prompt,
            reply=self.new_text(request, BEFORE_REPLY, 1),
            slot=request.slot,
        )
        self.replay.invented.append(asked)
        self.player.launch(asked)
        if self.player.run_until(asked.number).error is not None:
            return None
        self.replay.order += [("launch", asked.number), ("finish", asked.number)]
        return prompt

    def _spelt_out(self, rebuilt: Rebuilt, found: Iterable[Possible]) -> Iterator[Way]:
        whole = rebuilt.lengths.prompt.value or 0
        cached = rebuilt.lengths.cached.value
        seen: set[tuple[str, int, bool]] = set()
        spelt: list[list[Way]] = []
        for rope, name, bounds, cache_prompt in found:
            ways = []
            for common in likely(rope, whole, cached, bounds, one=rebuilt.observed.one_token):
                which = (name, common, cache_prompt) if common else ("nothing", 0, True)
                if which in seen:
                    continue
                seen.add(which)
                start = with_moved(rope[:common], rope, rebuilt.observed)
                prompt = self._filled(rebuilt.observed, start, rope, whole)
                known = bounded(common, bounds.low, bounds.high)
                goes_on = 0 < common == len(rope)
                at_joint = common in joints_of(rope)
                holder = name if common else "nothing"
                ways.append(Way(prompt, known, holder, cache_prompt, goes_on, at_joint))
            spelt.append(ways)
        by_rank = [
            ways[rank]
            for rank in range(max(map(len, spelt), default=0))
            for ways in spelt
            if rank < len(ways)
        ]
        yield from sorted(by_rank, key=lambda way: not way.at_joint)
