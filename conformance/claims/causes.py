"""Each cause's claim, compared with the request, its events and its flags.

A cause without an entry here is not judged, and makes the checker fail.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachesim.play.session import Record
from conformance.claims.memory import common, text_of
from conformance.claims.played import Played


@dataclass(frozen=True, slots=True)
class Lost:
    """One entry of `why`, and the run that it belongs to."""

    played: Played
    index: int
    before: int
    after: int
    detail: Mapping[str, Any]

    @property
    def record(self) -> Record:
        return self.played.records[self.index]

    @property
    def prompt_tokens(self) -> int:
        return len(self.record.prompt)

    def flag(self, name: str, default: object = None) -> Any:
        return self.played.flags.get(name, default)

    def events(self, words: str, *, earlier: bool = False) -> Iterator[dict[str, Any]]:
        """Events whose names have these words: of this request, or of those before it too."""
        first = 0 if earlier else self.index
        for record in self.played.records[first : self.index + 1]:
            for event in record.events:
                if words in event.name():
                    yield event.as_dict()

    def happened(self, words: str, *, earlier: bool = False) -> bool:
        return any(True for _ in self.events(words, earlier=earlier))


def _span(lost: Lost, *, gone: bool = False) -> bool:
    """From wanted to found tokens, none counted twice."""
    named = (lost.detail["wanted"], lost.detail["found"])
    evicted = not gone or lost.happened("evict", earlier=True)
    return named == (lost.before, lost.after) and lost.after < lost.before and evicted


def _gone(lost: Lost) -> bool:
    return _span(lost, gone=True)


def _given_up(lost: Lost) -> bool:
    """Evicted, or freed by a request that was set back."""
    return _span(lost) and any(lost.happened(each, earlier=True) for each in ("evict", "set-back"))


def _multiple(of: str) -> Callable[[Lost], bool]:
    return lambda lost: lost.after == lost.before // lost.detail[of] * lost.detail[of]


def _on_a_grid(lost: Lost) -> bool:
    """Up to a multiple of the interval, or to the token before, where a key names one more."""
    interval = lost.detail["interval"]
    return lost.detail["used"] == lost.after < lost.before and -lost.after % interval in {0, 1}


def _nothing(lost: Lost) -> bool:
    return lost.after == 0


def _lowers(lost: Lost) -> bool:
    return lost.after <= lost.before


def _last(lost: Lost) -> bool:
    count = lost.detail.get("n_tokens", lost.detail.get("prompt_tokens"))
    return bool(count == lost.prompt_tokens and lost.after == count - 1)


def _granted(lost: Lost) -> bool:
    return bool(lost.before < lost.after == lost.detail["answer"])


def _not_kept(lost: Lost) -> bool:
    return bool(lost.detail.get("kept", lost.detail.get("found")) == lost.after < lost.before)


def _at_work(lost: Lost) -> bool:
    """The other request has these tokens, and arrived no later than this one."""
    others = [r for r in lost.played.records if r.ticket is not None]
    named = [r for r in others if int(r.ticket or 0) == lost.detail["request"]]
    held = [r.prompt + (() if r.reply is None else r.reply.generated) for r in named]
    return any(common(each, lost.record.prompt) >= lost.before for each in held)


def _saved(lost: Lost) -> bool:
    """That many tokens were saved, by an event of the run, or are in a text."""
    count = lost.detail["n_tokens"]
    told = any(event.get("n_tokens") == count for event in lost.events("", earlier=True))
    return told or any(len(text_of(record)) >= count for record in lost.played.records)


def _drafted(lost: Lost) -> bool:
    drafter = lost.flag("speculative_method") in {"eagle", "mtp"}
    return drafter and lost.before - lost.after == lost.detail["block"]


def _not_read(lost: Lost) -> bool:
    off = lost.flag("enable_prefix_caching") is False
    return lost.after == 0 and (off or not lost.record.step.cache_prompt)


def _window(lost: Lost) -> bool:
    """A window shows that many tokens and the query."""
    return _span(lost) and lost.detail["window"] == lost.played.oracle.network.spec.window - 1


def _another_slot(lost: Lost) -> bool:
    taken = lost.played.steps[lost.index].slot
    named = lost.detail["slot"] != taken == lost.detail.get("chosen", taken)
    return named and lost.after <= lost.before


def _unseen(lost: Lost) -> bool:
    taken = lost.played.steps[lost.index].slot
    searched = lost.happened("cache-entry-loaded")
    return lost.detail["chosen"] == taken and lost.after <= lost.before and not searched


def _moved(lost: Lost) -> bool:
    moves = sum(event["size"] for event in lost.events("chunk-reused"))
    return bool(lost.after - lost.before == moves)


def _unloaded(lost: Lost) -> bool:
    """The child that answered the same model before ended for the model that is named."""
    ended = list(lost.events("model-unloaded", earlier=True))
    named = {key: lost.detail[key] for key in ("model", "asked")}
    own = f"[models.{lost.record.step.model}]" if lost.record.step.model else "[model]"
    return named["model"] == own and any(named.items() <= each.items() for each in ended)


def _embedded(lost: Lost) -> bool:
    asked = lost.record.step.options.get("endpoint") in {"embedding", "rerank"}
    return lost.after == 0 and asked


def _refused(lost: Lost) -> bool:
    """The request's error is the one that its client received."""
    step = lost.played.steps[lost.index]
    children = {child.error for child in lost.record.children}
    return lost.after == 0 and lost.detail["error"] in {step.error, *children}


def _loosely(lost: Lost) -> bool:
    exact, tolerant = lost.detail["exact"], lost.detail["tolerant"]
    return bool(0 <= exact <= lost.prompt_tokens and tolerant >= 0)


CAUSES: Final[Mapping[str, Callable[[Lost], bool]]] = {
    "adapters-changed": _nothing,
    "attention-evicted": _gone,
    "attention-missing": _span,
    "cache-better-entry": lambda lost: lost.happened("cache-entry-compared"),
    "cache-keep": lambda lost: lost.detail["f_keep"] < lost.detail["below"],
    "cache-load-failed": lambda lost: lost.happened("cache-load-failed"),
    "cache-making-room": _saved,
    "cache-not-better": _saved,
    "cache-not-read": _not_read,
    "cache-obsolete-entry": _saved,
    "cache-prompt-off": _nothing,
    "cache-ram-n-min": lambda lost: lost.detail["match"] < lost.detail["n_min"],
    "cache-unseen": _unseen,
    "checkpoint-fallback": lambda lost: lost.after == lost.detail["n_tokens"],
    "checkpoint-restored": lambda lost: lost.after <= lost.detail["n_tokens"],
    "checkpoint-before": lambda lost: (
        (lost.detail["wanted"], lost.detail["found"]) == (lost.before, lost.after)
    ),
    "chunk-reuse": _moved,
    "context-shifted": lambda lost: lost.after > lost.before and lost.detail["erased"] > 0,
    "cut-refused": lambda lost: (
        _nothing(lost) and lost.detail["wanted"] <= lost.before and lost.happened("cut-refused")
    ),
    "drafter-lookahead": lambda lost: (
        (lost.detail["used"], lost.detail["equal"]) == (lost.after, lost.before)
        and lost.after == lost.before - 1
    ),
    "embedding-reuses-nothing": _embedded,
    "evicted": _given_up,
    "f-keep": lambda lost: lost.detail["f_keep"] >= 0.5 - 1e-6,
    "false-match": lambda lost: lost.after == lost.detail["answer"],
    "fed-again": lambda lost: _nothing(lost) and lost.before <= lost.detail["n_tokens"],
    "from-host": lambda lost: lost.after - lost.before == lost.detail["tokens"],
    "from-store": lambda lost: lost.after - lost.before == lost.detail["tokens"],
    "full-reprocessing": _nothing,
    "full-reset": lambda lost: lost.happened("full-reset") and lost.after == 0,
    "grants-more": _granted,
    "groups-disagree": lambda lost: lost.after < min(lost.detail["answers"].values()),
    "ids-of-all-images": lambda lost: lost.after == lost.detail["found"] < lost.before,
    "image-ahead": lambda lost: _nothing(lost) and 0 < lost.detail["used"] <= lost.before,
    "last-token": _last,
    "less-loaded": _span,
    "load-failed": lambda lost: lost.after == lost.detail["valid"],
    "list-moved-out": _nothing,
    "look-ahead-block": _drafted,
    "media-uncached": lambda lost: _nothing(lost) and lost.before <= lost.detail["n_tokens"],
    "memory-depth": _nothing,
    "model-unloaded": _unloaded,
    "no-state-yet": _span,
    "not-fetched": lambda lost: (
        (lost.detail["stored"], lost.detail["found"]) == (lost.before, lost.after)
    ),
    "not-hashed": _span,
    "not-kept": _not_kept,
    "not-loaded-back": _span,
    "no-token-left": lambda lost: _nothing(lost) and lost.detail["entry"] >= lost.before,
    "not-trimmable": _lowers,
    "one-token-is-fed": _last,
    "pairs-of-tokens": lambda lost: (
        (lost.detail["tokens"], lost.detail["pairs"]) == (lost.before, lost.before - 1)
    ),
    "placeholder": lambda lost: _nothing(lost) and lost.detail["used"] <= lost.before,
    "prefix-not-kept": lambda lost: _nothing(lost) and lost.detail["wanted"] == lost.before,
    "prompt-truncated": lambda lost: lost.detail["dropped"] > 0 and _lowers(lost),
    "read-whole": _embedded,
    "record-missing": lambda lost: (
        lost.detail["matched"] == lost.before and lost.detail["used"] <= lost.after < lost.before
    ),
    "replaced": _span,
    "request-refused": _refused,
    "same-prompt-alone": lambda lost: _nothing(lost) and lost.before <= lost.detail["n_tokens"],
    "seq-rm-refused": _nothing,
    "server-reuses-nothing": _nothing,
    "sharing-off": _nothing,
    "shorter-entry-first": lambda lost: lost.detail["used"] >= lost.after,
    "slot-age": _another_slot,
    "slot-busy": _another_slot,
    "slot-cleared": _lowers,
    "slot-pinned": _another_slot,
    "slot-similarity": lambda lost: lost.detail["threshold"] > 0 and _another_slot(lost),
    "slot-tokens": _lowers,
    "smart-context": lambda lost: lost.detail["dropped"] > 0,
    "state-behind": lambda lost: _nothing(lost) and lost.detail["held"] >= lost.before,
    "state-evicted": _gone,
    "state-forgiven": _granted,
    "state-missing": _span,
    "states-on-a-grid": _on_a_grid,
    "still-at-work": _at_work,
    "stored-unused": lambda lost: _nothing(lost) and lost.before <= lost.detail["n_tokens"],
    "text-match": _loosely,
    "too-short": lambda lost: _nothing(lost) and lost.before < lost.detail["least"],
    "trimmed-too-little": _lowers,
    "whole-blocks": _multiple("block"),
    "whole-pages": _multiple("page"),
    "window-begins-later": lambda lost: (
        _nothing(lost) and lost.detail["wanted"] == lost.before and lost.detail["first"] > 0
    ),
    "window-evicted": _gone,
    "window-gone": _window,
    "window-layers": _nothing,
    "window-missing": _span,
    "window-refilled": lambda lost: lost.after == lost.prompt_tokens - lost.detail["refilled"],
}
"""By id, what must hold of every entry of `why`."""
