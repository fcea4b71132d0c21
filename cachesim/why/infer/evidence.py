"""Bounds on a request's lengths and common prefixes, from the numbers in a log."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Final

from cachesim.why.infer.settings import prompt_length
from cachesim.why.read.observed import UNKNOWN, Known, Observed, bounded, computed, printed

HALF_STEP: Final = 0.0005
"""Rounding error of three printed decimals."""

SLACK: Final = 1e-6
"""Rounding error of single precision, on top of `HALF_STEP`."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Whole numbers from `low` to `high`, both included."""

    low: int
    high: int

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high

    def meet(self, other: "Interval | None") -> "Interval | None":
        """Intersection, or None."""
        if other is None:
            return self
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Interval(low, high) if low <= high else None

    def near(self, value: int) -> int:
        """The nearest number within the interval."""
        return min(max(value, self.low), self.high)


def counts_of(ratio: str | None, whole: int | None) -> Interval | None:
    """Bounds of a count, from its printed ratio to `whole` tokens."""
    if ratio is None or not whole:
        return None
    try:
        value = float(ratio)
    except ValueError:
        return None
    if not -HALF_STEP <= value <= 1 + HALF_STEP:
        return None
    low = ceil((value - HALF_STEP - SLACK) * whole)
    high = floor((value + HALF_STEP + SLACK) * whole)
    low, high = max(0, low), min(whole, high)
    return Interval(low, high) if low <= high else None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts of a prompt."""

    prompt: Known
    cached: Known
    processed: Known


def lengths_of(request: Observed) -> Lengths:
    """Prompt, cached and processed tokens, in the precision of the log."""
    whole = prompt_length(request.n_tokens, request.held_after, request.generated)
    if request.offset and request.first_cut and request.processed is not None:
        whole = request.first_cut + request.offset + request.processed
    if request.shifts and request.n_tokens is None:
        whole = None
        if request.held_after is not None and request.generated is not None:
            gone = sum(discarded for _, discarded in request.shifts)
            whole = request.held_after + gone - max(0, request.generated - 1)
    count = request.processed
    if whole is not None and count is not None and count > whole:
        # Lines are missing, and the two numbers are of two requests: the printed one is kept.
        whole, count = (whole, None) if request.n_tokens is not None else (None, count)
    prompt = UNKNOWN
    if request.n_tokens is not None:
        prompt = printed(request.n_tokens)
    elif whole is not None:
        prompt = computed(whole)
    cached = _cached(request, whole, count)
    bounds = prompt_bounds(request)
    if prompt.value is None and bounds.low == bounds.high:
        whole, prompt = bounds.low, computed(bounds.low)
    if cached.value is None and request.cached_within is not None:
        cached = bounded(*request.cached_within)
    processed = UNKNOWN
    if count is not None:
        processed = printed(count)
    elif whole is not None and cached.value is not None:
        read: int | None = whole
        if request.cancelled:
            read = None if request.held_after is None else min(whole, request.held_after)
        if read is not None:
            near, low, high = (max(0, read - (end or 0)) for end in _ends_of(cached))
            processed = bounded(near, high, low)
    if prompt.value is None and None not in {cached.value, processed.value}:
        prompt = computed((cached.value or 0) + (processed.value or 0))
    if prompt.value is None and request.cancelled and request.held_after is not None:
        near = max((n + 4 for _, _, n in request.created), default=request.held_after)
        prompt = Known(bounds.near(near), "bounded", bounds.low, _end(bounds))
    elif prompt.value is None and request.held_after is None and bounds.low > 1:
        prompt = Known(bounds.low, "bounded", bounds.low, _end(bounds))
    return _with_processed(Lengths(prompt, cached, processed), request)


def _with_processed(lengths: Lengths, request: Observed) -> Lengths:
    """Bounds of the processed tokens of a prompt of which only bounds are known."""
    prompt, cached = lengths.prompt, lengths.cached.value
    if lengths.processed.is_sure or prompt.how != "bounded" or request.cancelled:
        return lengths
    least = max((tokens for tokens, _ in request.shares_read), default=0)
    near = most = None
    if cached is not None:
        least, near = max(least, (prompt.low or 0) - cached), (prompt.value or 0) - cached
    if prompt.high is not None:
        most = prompt.high - (cached or 0)
    known = Known(max(least, near or 0), "bounded", least, most)
    return replace(lengths, processed=known) if known.value else lengths


def _ends_of(known: Known) -> tuple[int | None, int | None, int | None]:
    is_bounded = known.how == "bounded"
    return known.value, *((known.low, known.high) if is_bounded else (known.value, known.value))


MOST: Final = 1 << 40
"""An upper bound where the log has none."""


def _end(bounds: Interval) -> int | None:
    return None if bounds.high == MOST else bounds.high


def prompt_bounds(request: Observed) -> Interval:
    """Bounds of a prompt's length from lines without it.

    against N             so much matches, and one token is always processed
    [N, end)              a batch begins there, as after a checkpoint of N tokens
    N tokens = 0.6810     the part that they are of the prompt, in rounded decimals
    """
    low = max(
        request.at_least,
        *(bound + 1 for _, _, bound in request.checked),
        *(cut + 1 for cut in request.cuts),
        *(tokens + 1 for _, _, tokens in request.created),
        *(tokens for tokens, _ in request.shares_read),
        (request.restored or 0) + 1,
    )
    high = MOST
    for tokens, share in request.shares:
        between = _whole_of(tokens, share)
        low, high = max(low, between.low), min(high, between.high)
    for tokens, share in request.shares_read:  # without what was cached, of which the part is
        low = max(low, _whole_of(tokens, share).low)
    if len(request.shares_read) > 1:
        (least, first), *_, (most, last) = request.shares_read
        apart = float(last) - float(first) - 2 * _half_step(last)
        if most > least and apart > 0:
            high = min(high, floor((most - least) / apart))
    return Interval(low, max(low, high))


def _whole_of(tokens: int, share: str) -> Interval:
    """Bounds of a length of which some tokens are a printed part."""
    part, half = float(share), _half_step(share)
    low = ceil(tokens / (part + half))
    return Interval(low, max(low, floor(tokens / (part - half))) if part > half else MOST)


def _half_step(share: str) -> float:
    return float(0.5 * 0.1 ** len(share.partition(".")[2]) + SLACK / 1000)


def with_length_from_ratios(
    lengths: Lengths, request: Observed, held: Sized, entries: Sequence[Sized]
) -> Lengths:
    """A length that no line prints, computed from two ratios of one common prefix.

    keep * held = common = sim * length
    """
    guess, low = lengths.prompt.value or 1, lengths.prompt.low or 1
    bound = request.checked[-1][2] if request.checked and request.held_after is None else 0
    if bound > 0 and request.sim is not None and float(request.sim) > 0:
        ratio = float(request.sim)
        lowest = max(low, ceil(bound / (ratio + HALF_STEP)))
        highest = max(lowest, floor(bound / max(ratio - HALF_STEP, SLACK)))
        nearest = guess if lowest <= guess <= highest else round(bound / ratio)
        known = Known(Interval(lowest, highest).near(nearest), "bounded", lowest, highest)
        return _with_processed(replace(lengths, prompt=known), request)
    pairs = [(request.keep, request.sim, held)]
    pairs += [(request.search.found_keep, request.search.found_sim, entry) for entry in entries]
    pairs.append((request.search.keep, request.search.sim, held))
    for keep, sim, tokens in pairs:
        common = counts_of(keep, len(tokens))
        if common is None or sim is None or common.low <= 0 or not float(sim) > 0:
            continue
        lowest = ceil(common.low / (float(sim) + HALF_STEP))
        highest = floor(common.high / max(float(sim) - HALF_STEP, SLACK))
        bounds = Interval(max(low, lowest), highest)
        if bounds.low <= bounds.high:
            known = Known(bounds.near(guess), "bounded", bounds.low, bounds.high)
            return _with_processed(replace(lengths, prompt=known), request)
    return lengths


def _cached(request: Observed, whole: int | None, processed: int | None) -> Known:
    if request.too_long:
        return UNKNOWN
    if request.refused_cut:
        return printed(0)
    most = None if whole is None else whole - (processed or 0)
    if request.first_cut is not None and (not request.started_before or request.begins):
        kept = request.first_cut + (request.offset if request.first_cut else 0)
        if most is None or kept <= most:  # else it is a later cut: the first one's line is missing
            return printed(kept)
    if whole is not None and processed is not None:
        return computed(max(0, whole - processed))
    if request.restored is not None and (most is None or request.restored <= most):
        less = 1 if whole is not None and request.restored == whole else 0
        return printed(request.restored - less)
    return computed(0) if request.forced else UNKNOWN


def common_with_holder(
    request: Observed, whole: int | None, window: int, *, verbose: bool
) -> Known:
    """The prompt's common prefix with the slot's content when memory was checked.

    n_past = N      May's releases print it
    against N       it is N and the window more; one more still where nothing new follows
    evaluate 1      all of the prompt: one token is processed for its logits all the same
    [N, end)        refused: memory was asked to keep what is equal, and could not
    cached          where nothing stood in the way, and the log would say so if it did
    """
    if request.moved:  # chunks were moved behind it
        return printed(request.moved[0][1])
    seen = request.refused_at if request.depth is None else request.depth[0]
    if request.depth is None and request.one_token and whole is not None:
        seen = whole
    if seen is not None:
        return printed(seen)
    if request.checked:
        bound = request.checked[-1][2]
        common = bound + window
        if bound == 0 and window > 0:
            return Known(window, "bounded", 0, window)
        own = prompt_length(request.n_tokens, request.held_after, request.generated)
        if whole == own == common + 1 and request.sim in {None, "1.000"}:
            return bounded(whole, whole - 1, whole) if request.sim is None else computed(whole)
        return computed(common)
    if request.restored is not None or request.forced or not verbose or whole is None:
        return UNKNOWN
    cached = _cached(request, whole, request.processed).value
    if cached is None:
        return UNKNOWN
    return computed(whole if cached == whole - 1 and request.one_token else cached)


def as_printed(request: Observed, whole: int, common: Known) -> Known:
    """What a prompt shares with a slot of which the replay holds nothing: within the printed ratio,
    whatever was reused of it. Lines of memory come after that, and are exact.
    """
    is_counted = common.how == "printed" or request.checked or request.search.found_keep
    bounds = None if is_counted else counts_of(request.sim, whole)
    if bounds is None or (common.value is not None and common.value in bounds):
        return common
    return bounded((bounds.low + bounds.high) // 2, bounds.low, bounds.high)


def held_before(request: Observed, whole: int | None) -> Interval | None:
    """Bounds of the slot's tokens at the request's arrival.

    sim * length = common = keep * held
    """
    if request.search.saved is not None:
        return Interval(request.search.saved, request.search.saved)
    if request.depth is not None and request.search.found_keep is None:
        return Interval(request.depth[1], request.depth[1])
    common, keep = counts_of(request.sim, whole), float(request.keep or 0)
    if common is None or keep <= HALF_STEP or not common.low:
        return None
    low, high = ceil(common.low / (keep + HALF_STEP)), floor(common.high / (keep - HALF_STEP))
    return Interval(low, high) if low <= high else None


def share_done(observed: Observed, now: float | None) -> tuple[float, float] | None:
    """Shares of the prompt and of the reply that were processed at a time of the log."""
    start = observed.launched_at
    if now is None or start is None or observed.prompt_ms is None:
        return None
    elapsed = (now - start) * 1000
    read = elapsed / max(observed.prompt_ms, 0.001)
    spoken = (elapsed - observed.prompt_ms) / max(observed.reply_ms or 0.001, 0.001)
    return min(1.0, max(0.0, read)), min(1.0, max(0.0, spoken))
