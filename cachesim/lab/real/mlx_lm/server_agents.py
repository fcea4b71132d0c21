"""Coding agents as mlx-lm's server is asked: long chats with tools, several of them at once."""

from dataclasses import dataclass, field
from typing import Final

from cachesim.lab.real.agents import Agents, Row, Sizes, Talk
from cachesim.lab.real.mlx_lm.families import OTHERS
from cachesim.lab.real.mlx_lm.server_workloads import (
    END_MARK,
    VOCABULARY,
    Drawer,
    Request,
    Workload,
    draw_workload,
)
from cachesim.units import as_tokens

LONGEST: Final = (300, 800, 2400)
"""Words of a chat at most."""

FIRST_WORD: Final = 24
"""Tokens from here on are plain words of every template."""

LARGER: Final = {"prefill_step_size": 32, "prompt_cache_bytes": 30}
"""By how much these options are larger than for short chats."""


@dataclass(slots=True)
class AgentDrawer(Drawer):
    """A to three users at their agents; what is said and who leaves is drawn as for others."""

    users: list[Agents] = field(default_factory=list)

    def group(self) -> list[Request]:
        if not self.users:
            sizes = Sizes.within(self.random.choice(LONGEST))
            count = self.random.choice((1, 2, 3))
            self.users = [Agents(self.random, self._fresh, sizes) for _ in range(count)]
        crowd = self.random.random() < 0.4
        users = self.users if crowd else [self.random.choice(self.users)]
        requests = [request for user in users for request in self._asked(user)]
        if len(requests) > 1:
            self._disturb(requests)
        return requests

    def _asked(self, user: Agents) -> list[Request]:
        requests = [self._of(talk) for talk in user.next()]
        user.learn([request["reply"] for request in requests])
        return requests

    def _fresh(self, count: int) -> list[int]:
        return [self.random.randrange(FIRST_WORD, VOCABULARY) for _ in range(count)]

    def _text(self, row: Row) -> str:
        return self.tokenizer.decode(as_tokens([each for each in row if each != END_MARK]))

    def _of(self, talk: Talk) -> Request:
        said = [{"role": each.role, "content": self._text(each.tokens)} for each in talk.messages]
        system = [{"role": "system", "content": self._text(row)} for row in talk.head[:1]]
        request: Request = {"messages": [*system, *said]}
        if talk.head[1:]:
            request["tools"] = [self._text(row) for row in talk.head[1:]]
        request["max_tokens"] = self.random.choice((1, 2, 5, 12, 40))
        request["stream"] = self.random.random() < 0.5
        request["reply"] = self.reply(request)
        return request


def draw_agents(release: str, seed: int, number: int) -> Workload:
    """A workload: a fresh server of a release, and what users' agents ask of it.

    A state that padding spoiled is as good as right after hundreds of tokens, the sooner the faster
    the weights forget; in place of a class with other weights than the toy's the next is drawn.
    """
    workload = draw_workload(release, seed, number, groups=14, drawer=AgentDrawer)
    known = OTHERS.get(workload["model"]["family"])
    if known is not None and known.fades:
        return draw_agents(release, seed, number + 1)
    for name in LARGER.keys() & workload["options"].keys():
        workload["options"][name] *= LARGER[name]
    return workload | {"id": f"agents-{workload['id']}"}
