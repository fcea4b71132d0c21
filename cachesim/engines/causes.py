"""Causes of lost reuse, as declared values with their sentences.

Each engine has a module `causes` with one `Cause` per branch that lowers the number of reusable
tokens. The branch passes its cause and the numbers of its test to `Ledger.apply`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from cachesim.engines.words import filled, names_in
from cachesim.errors import ContractError
from cachesim.units import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A cause of lost reuse in an engine.

    `sentence` is a template: lower case, no full stop, true of the numbers alone. `fields` are
    numbers that it does not name. `about` explains when the cause occurs, and its remedy.
    """

    id: str
    sentence: str
    about: str
    fields: tuple[str, ...] = ()
    numbers: frozenset[str] = field(init=False, compare=False)  # those of each case
    derived: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        if not self.sentence or not self.about:
            raise ContractError(f"cause {self.id} needs a sentence and an about")
        named = names_in(self.sentence) - self.derived
        object.__setattr__(self, "numbers", named.union(self.fields))

    def render(self, detail: Mapping[str, Any]) -> str:
        """The sentence with the numbers of one case."""
        return filled(self.sentence, detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A cause that changed the number of reusable tokens.

    Emitted where the engine takes the branch. The losses of a request add up to its best match
    minus the reused tokens. A cause that regains tokens (a checkpoint after a refused cut) has
    `after > before`.
    """

    cause: Cause
    before: Count
    after: Count
    detail: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.detail.keys() != self.cause.numbers:
            raise ContractError(
                f"cause {self.cause.id} is declared with fields {sorted(self.cause.numbers)},"
                f" and was given {sorted(self.detail)}"
            )

    @property
    def rule(self) -> str:
        """The cause's id."""
        return self.cause.id

    @property
    def sentence(self) -> str:
        """The cause's sentence, without the counts."""
        words = self.cause.render({**self.detail, "before": self.before})
        return f"{words[:1].upper()}{words[1:]}"

    def as_dict(self) -> dict[str, Any]:
        """The entry of `why` in the JSON."""
        return {
            "rule": self.rule,
            "from": self.before,
            "to": self.after,
            "detail": dict(self.detail),
            "sentence": self.sentence,
        }


def declared(module: Mapping[str, object]) -> tuple[Cause, ...]:
    """The causes among the names of a module, in order."""
    return tuple(value for value in module.values() if isinstance(value, Cause))


NO_STATE: Final = "no state was saved between {found} and {wanted} tokens"
STATES_COVER: Final = "states to resume from cover {found} of {wanted} tokens"
STATES_APART: Final = (
    "of this prompt a state is kept every {interval} tokens; the last one that may be used is "
    "after {used}"
)


def last_computed(about: str) -> Cause:
    """The cause for computing the last token of a fully known prompt."""
    return Cause(
        id="last-token",
        sentence="all {prompt_tokens} tokens are known; the last one is computed for its logits",
        about=about,
    )


class Ledger:
    """The running number of reusable tokens; every change names a declared cause.

    `equal - usable` is always the sum over `losses`, as only `apply` changes the number.
    """

    __slots__ = ("equal", "equal_with", "losses", "usable")

    def __init__(self, equal: Count = Count(0), equal_with: str = "nothing") -> None:
        self.equal = equal
        self.equal_with = equal_with
        self.usable = equal
        self.losses: tuple[Loss, ...] = ()

    def apply(self, cause: Cause, usable: int, **detail: Any) -> None:
        """Set the number of reusable tokens; an unchanged number adds no loss.

        `detail` holds the numbers of the branch's test, one for each field of the cause.
        """
        after = Count(usable)
        if after != self.usable:
            self.losses += (Loss(cause=cause, before=self.usable, after=after, detail=detail),)
            self.usable = after


class Candidates:
    """The reusable tokens by holder, eliminated until one holder is left.

    A request could have reused the best of all slots and prompt-cache entries. Each branch of the
    slot choice rules out some of them; if that lowers the maximum, the ledger records the branch's
    cause.
    """

    __slots__ = ("_best", "_common", "ledger")

    def __init__(self, common: Mapping[object, Count], name: Callable[[Any], str]) -> None:
        """`common` maps a holder to its number of tokens in common with the prompt.

        Those without any may be left out. `name` names the best one, the first of equals.
        """
        self._common = {holder: count for holder, count in common.items() if count}
        best = max(self._common, key=self._common.__getitem__, default=None)
        if best is None:
            self.ledger = Ledger()
        else:
            self.ledger = Ledger(self._common[best], name(best))
        self._best = self._holders()

    def _holders(self) -> int:
        """Number of holders that have as many tokens as the best one."""
        return list(self._common.values()).count(self.ledger.usable)

    def common(self, holder: object) -> Count:
        """Number of tokens that a holder has in common with the prompt; 0 once it is ruled out."""
        return self._common.get(holder, Count(0))

    def rule_out(self, holder: object, cause: Cause, **detail: Any) -> None:
        """Eliminate a holder for a cause."""
        if self._take(holder) and not self._best:
            self.ledger.apply(cause, max(self._common.values(), default=0), **detail)
            self._best = self._holders()

    def drop(self, holder: object, least: float) -> bool:
        """Eliminate a holder with fewer tokens than the least, if it needs no cause, as another one
        has as many tokens.
        """
        count = self._common.get(holder)
        if count is not None and count >= least:
            return False
        if count == self.ledger.usable:
            if self._best == 1:
                return False
            self._best -= 1
        self._common.pop(holder, None)
        return True

    def keep(self, *holders: object) -> None:
        """Eliminate all others, none of which has more tokens, so that they need no cause."""
        self._common = {
            holder: self._common[holder] for holder in holders if holder in self._common
        }
        self._best = self._holders()

    def _take(self, holder: object) -> Count:
        count = self._common.pop(holder, Count(0))
        if count and count == self.ledger.usable:
            self._best -= 1
        return count

    def transfer(self, holder: object, other: object) -> None:
        """Move the content of another holder to a holder."""
        self._take(holder)
        count = self._take(other)
        if count:
            self._common[holder] = count
            self._best += count == self.ledger.usable

    def settle_on(self, holder: object, cause: Cause, **detail: Any) -> None:
        """Eliminate all other holders for one cause."""
        for other in [candidate for candidate in self._common if candidate is not holder]:
            if self.common(holder) == self.ledger.usable:
                break  # the others have no more
            self.rule_out(other, cause, **detail)
        self.keep(holder)
