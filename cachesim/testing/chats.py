"""Random chats, grown from what was answered: what a client of a chat endpoint sends."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from cachesim.engines.byte_tokenizer import ByteTokenizer
from cachesim.scenario.format import Turn
from cachesim.testing.draws import Draws
from cachesim.units import as_tokens

Chat: TypeAlias = tuple[Turn, ...]


class Chats:
    """The chats so far, and ways to go on from one of them.

    extend     [ system | user | assistant ] user         the reply comes back as it was said
    edit       [ system | user | assistant ] another      the last question is asked otherwise
    cut        [ system | user ]                          an earlier turn, asked again
    rewrite    [ system | user | its end ] user           of the reply only the end comes back
    """

    def __init__(self, draws: Draws, *, strangers: bool) -> None:
        self._draws = draws
        self._strangers = strangers  # most requests come from people who have not asked before
        self._turns: list[tuple[Chat, tuple[int, ...]]] = []  # chat and reply, oldest first

    def next(self, new: Callable[[], tuple[int, ...]]) -> Chat:
        """What is asked next; `new` makes up what nobody has said before."""
        draws = self._draws
        if not self._turns or (self._strangers and draws.integer(0, 2)):
            return self._opened(new)
        chat, reply = self._turns[-1 - draws.integer(0, min(3, len(self._turns) - 1))]
        way = draws.one_of(("extend", "extend", "new", "edit", "again", "cut", "rewrite"))
        if way == "new":
            return self._opened(new)
        if way == "edit":
            return (*chat[:-1], said("user", new()))
        if way == "again":
            return chat
        if way == "cut":
            asked = [number for number, turn in enumerate(chat) if turn.role == "user"]
            return chat[: draws.one_of(asked) + 1]
        answer = reply[len(reply) // 2 :] if way == "rewrite" else reply
        return (*chat, said("assistant", answer), said("user", new()))

    def learn(self, chat: Chat, reply: tuple[int, ...]) -> None:
        """Remember what was answered."""
        self._turns.append((chat, reply))

    def _opened(self, new: Callable[[], tuple[int, ...]]) -> Chat:
        """A first question; half of what is said is a word or two."""
        draws = self._draws

        def spoken() -> tuple[int, ...]:
            return new()[: draws.integer(1, 6)] if draws.integer(0, 1) else new()

        system = (said("system", spoken()),) if draws.integer(0, 1) else ()
        return (*system, said("user", spoken()))


def said(role: str, tokens: Sequence[int]) -> Turn:
    """A message of these tokens."""
    return Turn(role=role, content=ByteTokenizer().decode(as_tokens(list(tokens))))


def words_of(turn: Turn) -> tuple[int, ...]:
    """The tokens of a message."""
    return tuple(map(int, ByteTokenizer().encode(turn.content)))
