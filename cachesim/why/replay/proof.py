"""The one way from a replay to a saving: requests that it reproduces, against what the log says.

log        0: 313   1: 136   2: 37    3: 30, n = 2   4: ?      prefilled tokens
replay     0: 313   1: 136   2: 377   3: 30          4: 12     of the same server
proven     0, 1, 3: 479 tokens                                 a saving is a saving of these
left out   2 (37 tokens), 4 (unknown)                          and how much these may matter
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cachesim.engines.words import counted
from cachesim.why.replay.player import Replayed
from cachesim.why.replay.replayed import Replay

MATTERS: Final = 0.02
"""Part of the prefilled tokens by which what is not proven may change a sum that is."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a log or a recording says of a request; None where it does not."""

    number: int
    cached: int | None
    prefilled: int | None
    prompt: int | None
    slot: int | None = None
    is_child: bool = False
    is_assumed: bool = False  # the replay agrees only because something was assumed of it

    def is_met(self, played: Replayed | None) -> bool:
        """True if a replay has both counts and the slot, and nothing was assumed for that."""
        if played is None or self.prefilled is None or not self.is_followed_by(played):
            return False
        return (played.cached, played.processed) == (self.cached, self.prefilled)

    def is_followed_by(self, played: Replayed) -> bool:
        """True if a replay is in the same slot: else it holds other conversations elsewhere."""
        return not self.is_assumed and self.slot in {None, played.slot}

    @property
    def most(self) -> int:
        """The most tokens by which it may change: all cached ones lost, or all others saved."""
        if self.cached is not None and self.prefilled is not None:
            return max(self.cached, self.prefilled)
        return self.prompt or 0


@dataclass(frozen=True, slots=True)
class Proof:
    """Requests over which the tokens of other servers are summed, and those that are left out."""

    logged: Mapping[int, int]  # request -> prefilled tokens, as the log has them
    out: tuple[Counts, ...] = ()
    proven: tuple[Counts, ...] = ()
    own: Mapping[int, Replayed] = field(default_factory=dict)  # the server itself, replayed
    children: int = 0  # further completions of a prompt, which take its state

    def is_met(self, played: Mapping[int, Replayed]) -> bool:
        """True if other prompts have the log's counts in each request that is proven."""
        return all(counts.is_met(played.get(counts.number)) for counts in self.proven)

    def prefilled(self, played: Mapping[int, Replayed]) -> int:
        """Tokens that a server prefilled, of the requests that are proven. No other sum is made."""
        return sum(played[number].processed or 0 for number in self.logged)

    def open(self, played: Mapping[int, Replayed]) -> int:
        """The tokens by which other settings may change the requests left out."""
        return sum(self._open(counts, played.get(counts.number)) for counts in self.out)

    def _open(self, counts: Counts, played: Replayed | None) -> int:
        own = self.own.get(counts.number)
        if own is None or played is None or not counts.is_followed_by(own):
            return counts.most
        before, now = own.processed, played.processed
        if before is None or now is None:
            return counts.most
        error = 0 if counts.prefilled is None else abs(before - counts.prefilled)
        return error + abs(now - before)


def counts_of(replay: Replay) -> list[Counts]:
    """The counts of a log's requests; those that were refused have none.

    Of a request without a reply the replay takes the end from the log: its client left, or a decode
    found no room. With other settings it may end elsewhere.
    """
    found = []
    for request in (request for request in replay.requests if not request.observed.too_long):
        lengths = request.lengths
        cached, prefilled, prompt = (
            known.value if known.is_sure else None
            for known in (lengths.cached, lengths.processed, lengths.prompt)
        )
        observed = request.observed
        found.append(
            Counts(
                observed.number,
                cached,
                prefilled,
                prompt,
                observed.slot if observed.slot >= 0 else None,
                is_child=observed.is_child,
                is_assumed=(
                    request.is_taken_to_decline or request.shares_less or observed.cancelled
                ),
            )
        )
    return found


def proof_of(counts: Sequence[Counts], played: Mapping[int, Replayed]) -> Proof:
    """Compare what the server itself did in a replay with what is known, request by request.

    A further completion takes the state of the first one, and its line repeats that one's count.
    """
    own = [count for count in counts if not count.is_child]
    met = {count.number for count in own if count.is_met(played.get(count.number))}
    out = tuple(count for count in own if count.number not in met)
    proven = tuple(count for count in own if count.number in met)
    return Proof(
        {count.number: count.prefilled or 0 for count in proven},
        out,
        proven,
        {count.number: played[count.number] for count in out if count.number in played},
        children=len(counts) - len(own),
    )


def left_out(proofs: Sequence[Proof]) -> str:
    """Sentence on the requests over which sums are made, and those left out; empty without any."""
    parts = [*_parts(proofs)]
    if not parts:
        return ""
    summed = sum(len(proof.logged) for proof in proofs)
    if not summed:
        return "No request is replayed with the log's counts: the sums are the replay's own."
    return (
        f"Replays are summed over {counted(summed, 'request')}, those whose replay equals the log. "
        f"Left out: {'; '.join(parts)}."
    )


def _parts(proofs: Sequence[Proof]) -> Iterator[str]:
    out = [counts for proof in proofs for counts in proof.out]
    tokens = [counts.prefilled for counts in out if counts.prefilled is not None]
    if tokens:
        one = counted(len(tokens), "request")
        yield f"{one} of {sum(tokens):,} prefilled tokens that the replay does not reproduce"
    if children := sum(proof.children for proof in proofs):
        yield f"{counted(children, 'further completion')} of a prompt (`n`), which take its state"
    if len(out) > len(tokens):
        unknown = counted(len(out) - len(tokens), "request")
        yield f"{unknown} whose prefilled tokens the log does not have"
