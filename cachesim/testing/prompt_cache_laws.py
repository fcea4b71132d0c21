"""`check_prompt_cache`: the laws of a store that parks conversations and hands them back.

a prefix       what is handed out covers the beginning of the prompt, as many tokens as it says
true states    the state handed out has folded in exactly those tokens
no aliasing    what a caller does to a state handed out changes nothing that is stored
one token left a whole prompt is never covered: the last token is needed for the answer
sizes add up   the store's size is never negative, and an empty store has none
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from hypothesis import strategies as st

from cachesim.testing.laws import EXAMPLES, Story, hold
from cachesim.testing.strategies import token_lists
from cachesim.units import Tokens


@dataclass(slots=True)
class State:
    """A stand-in for the caches of one conversation: it remembers what was fed to it.

    `trim` works for a state that can be cut, as keys and values can; a recurrent one refuses.
    """

    tokens: list[int] = field(default_factory=list)
    trimmable: bool = True

    def feed(self, tokens: Sequence[int]) -> None:
        """Go on by some tokens, in place."""
        self.tokens.extend(tokens)

    def trim(self, count: int) -> bool:
        """Take the last tokens back, in place; False: it cannot, and nothing has changed."""
        if not self.trimmable or count > len(self.tokens):
            return False
        del self.tokens[len(self.tokens) - count :]
        return True


class PromptCacheUnderTest(Protocol):
    """What a prompt cache must offer to be checked."""

    def insert(self, tokens: Tokens, state: State) -> None:
        """Park the state of a conversation under its tokens."""
        ...

    def fetch(self, tokens: Tokens) -> tuple[int, State] | None:
        """How many leading tokens are covered, and a state to go on from; None: nothing."""
        ...


Act: TypeAlias = tuple[str, Tokens]
ACTS: Final = ("insert", "ask")


def check_prompt_cache(
    make: Callable[[], PromptCacheUnderTest],
    *,
    trimmable: bool = True,
    examples: int = EXAMPLES,
) -> None:
    """Search for a short sequence of insertions and requests that breaks a law.

    `make` builds an empty cache. `trimmable` False plays with states that cannot be cut. Raises
    `BrokenLawError` with the law and the steps; returns when nothing was found.
    """
    acts = st.tuples(st.sampled_from(ACTS), token_lists(max_size=4))
    ways = st.lists(acts, min_size=1, max_size=6)
    hold(lambda way: _play(make(), way, trimmable=trimmable), ways, examples=examples)


def _play(cache: PromptCacheUnderTest, way: list[Act], *, trimmable: bool) -> None:
    story = Story()
    for act, tokens in way:
        if act == "insert":
            story.tell(f"insert({list(tokens)}) with a state that has folded in the same")
            cache.insert(tokens, State(list(tokens), trimmable))
        else:
            _ask(cache, tokens, story)
        size = getattr(cache, "nbytes", None)
        if isinstance(size, int) and size < 0:
            story.broken("sizes add up", f"nbytes is {size}")


def _ask(cache: PromptCacheUnderTest, tokens: Tokens, story: Story) -> None:
    """One request: what is handed out is checked, then used up as a server would."""
    found = cache.fetch(tokens)
    if found is None:
        story.tell(f"fetch({list(tokens)}) gives nothing")
        return
    covered, state = found
    story.tell(f"fetch({list(tokens)}) covers {covered}, with a state of {state.tokens}")
    if not 0 <= covered <= len(tokens):
        story.broken("a prefix", f"{covered} is not a number of tokens of this prompt")
    if covered == len(tokens):
        story.broken("one token left", "nothing is left to compute the answer from")
    if state.tokens != list(tokens[:covered]):
        story.broken(
            "true states",
            f"the state should have folded in {list(tokens[:covered])}: resuming from it gives a "
            f"different answer than a cold run",
        )
    before = list(state.tokens)
    state.feed([*tokens[covered:], 7])
    again = cache.fetch(tokens)
    if again is None:
        return
    story.tell(f"the caller feeds {[*tokens[covered:], 7]} to it, and fetches once more")
    if again[1].tokens != list(tokens[: again[0]]):
        story.broken(
            "no aliasing",
            f"the second one holds {again[1].tokens}; what the first caller did to {before} shows",
        )
