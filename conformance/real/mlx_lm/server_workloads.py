"""Random workloads for mlx-lm's server: conversations that branch, repeat, meet and break off."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any, Final, TypeAlias

from cachesim.engines.mlx_lm.families import FAMILIES
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.rules import ServerRules
from cachesim.engines.mlx_lm.server.word_tokenizer import THINK_MARKS, WordTokenizer
from cachesim.prove.mlx_lm.families import CLASSES, OTHERS, alone, windows_at
from cachesim.prove.mlx_lm.server_worker import VOCABULARY
from cachesim.prove.playing import Workload
from cachesim.units import as_tokens
from conformance.real.prompts import Agents, Conversation, Row, Sizes

Request: TypeAlias = dict[str, Any]

END_MARK: Final = 3
PLAYED: Final = (*CLASSES, *OTHERS)
PACKABLE: Final = ("llama", "qwen3_5", "gemma3_text")
"""Families whose heads can be as wide as a group; the last one's rings refuse to be packed."""

NO_MARK: Final = 10
"""No token above this is a mark of any template."""

REFUSED: Final = (("max_tokens", -1), ("stream", "yes"), ("seed", "one"), ("logit_bias", 3))
"""Fields that every release's server turns away."""

DRAFTED: Final = ("llama", "gemma3_text", "qwen3_5", "lfm2")
"""Families that get a draft model now and then; the last two cannot be trimmed."""

OPTIONS: Final[Mapping[str, Sequence[int]]] = {
    "prompt_cache_size": (1, 2, 4, 6),
    "prompt_cache_bytes": (4000, 10000, 20000),
    "prefill_step_size": (3, 4, 8, 16),
    "prompt_concurrency": (1, 2),
    "decode_concurrency": (1, 2),
}


@dataclass(slots=True)
class Dialog:
    """A conversation and its last reply."""

    messages: list[dict[str, str]]
    reply: str | None = None


@dataclass(slots=True)
class Drawer:
    """The random requests of one workload."""

    random: Random
    tokenizer: WordTokenizer
    rules: ServerRules
    systems: list[str] = field(default_factory=list)
    dialogs: list[Dialog] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    longest: int = 45  # words of a message

    def words(self, least: int, most: int) -> str:
        """A number of words, some of them repeated."""
        spread = self.random.choice((6, 40))
        count = self.random.randint(least, most)
        return " ".join(f"w{self.random.randrange(spread)}" for _ in range(count))

    def group(self) -> list[Request]:
        """A request, or several at once; a seed is for requests that come alone."""
        count = self.random.choice((1, 1, 1, 2, 3, 4))
        requests = [self.request() for _ in range(count)]
        if count == 1 and self.random.random() < 0.08:
            requests[0]["seed"] = 1
            if not self.rules.stop_words_end_generation:
                requests[0].pop("stop_words", None)  # whether it arrives in time is chance
        elif count > 1:
            self._disturb(requests)
        return requests

    def _disturb(self, requests: list[Request]) -> None:
        """A prompt twice, arrivals while others are served, clients that leave."""
        if self.random.random() < 0.1:
            requests[-1] = deepcopy(requests[0])
        for request in requests[1:]:
            if self.random.random() < 0.3:
                request["at"] = self.random.choice((1, 2, 3, 5, 8))
        if self.random.random() < 0.15:
            self._leave(self.random.choice(requests))
        if self.random.random() < 0.1:
            requests[-1]["refused"] = requests[-1]["body"] = dict([self.random.choice(REFUSED)])
        if self.random.random() < 0.04:
            # `max_tokens` 0, as clients send that want a prompt to be read and no more
            request = self.random.choice(requests)
            if self.rules.no_tokens == "refused":
                request["refused"] = request["body"] = {"max_tokens": 0}
            else:
                request |= {"max_tokens": 0, "reply": request["reply"][:1]}

    def _leave(self, request: Request) -> None:
        reply = [token if token > NO_MARK else token + NO_MARK for token in request["reply"]]
        request |= {
            "leaves_after": self.random.choice((0, 1, 2, 4)),
            "stream": True,
            "reply": reply,
        }

    def request(self) -> Request:
        """A turn of a conversation, or a text to complete."""
        request = self.text() if self.random.random() < 0.2 else self.chat()
        if "messages" in request and self.random.random() < 0.15:
            request["tools"] = self.random.choice((["w1 w2"], ["w1 w2", "w3"], ["w4"]))
        if "messages" in request and self.random.random() < 0.08:
            request["chat_template_kwargs"] = {"enable_thinking": self.random.random() < 0.3}
        request["max_tokens"] = self.random.choice((1, 2, 3, 5, 8, 12))
        request["stream"] = self.random.random() < 0.5
        if self.random.random() < 0.08:
            request["stop_words"] = [f"w{self.random.randrange(40)}"]
        request["reply"] = self.reply(request)
        return request

    def reply(self, request: Request) -> list[int]:
        """The reply: up to the end mark, a stop word or the limit."""
        stops = {self.tokenizer.encode(word)[0] for word in request.get("stop_words", ())}
        thinks = self.tokenizer.think_end
        reply: list[int] = []
        while len(reply) < request["max_tokens"]:
            reply.append(self.random.randrange(10, VOCABULARY))
            if thinks is not None and self.random.random() < 0.2:
                reply[-1] = thinks
            if self.random.random() < 0.2:
                reply[-1] = END_MARK
            if reply[-1] == END_MARK or reply[-1] in stops:
                break
        without_end = as_tokens([token for token in reply if token != END_MARK])
        if "text" in request:
            whole = self.tokenizer.decode(as_tokens(list(reply)))
            self.texts.append(f"{request['text']} {whole}")
        else:
            text = self.tokenizer.decode(without_end)
            self.dialogs.append(Dialog(list(request["messages"]), text))
        return reply

    def text(self) -> Request:
        """A new prompt, an earlier one, its beginning, or an extension of its completion."""
        kind = self.random.random()
        if not self.texts or kind < 0.4:
            return {"text": self.words(1, self.random.choice((1, 20, 20)))}
        words = self.random.choice(self.texts).split(" ")
        if kind < 0.55:
            words = words[: self.random.randint(1, len(words))]
        elif kind < 0.97:
            words = [*words, *self.words(1, 6).split(" ")]
        return {"text": " ".join(words)}

    def chat(self) -> Request:
        """A new conversation, the next turn of one, an edited one, or a repeated one."""
        kind = self.random.random()
        if not self.dialogs or kind < 0.3:
            return {"messages": self._opened()}
        dialog = self.random.choice(self.dialogs[-6:])
        messages = [dict(message) for message in dialog.messages]
        if kind < 0.4:
            return {"messages": messages}
        if kind < 0.55:
            kept = messages[-1]["content"].split(" ")
            kept = kept[: self.random.randint(0, len(kept))]
            messages[-1]["content"] = " ".join([*kept, *self.words(1, 4).split(" ")])
            return {"messages": messages}
        messages.append({"role": "assistant", "content": dialog.reply or ""})
        role = "tool" if self.random.random() < 0.2 else "user"
        messages.append({"role": role, "content": self.words(0, 12)})
        return {"messages": messages}

    def _opened(self) -> list[dict[str, str]]:
        if not self.systems or self.random.random() < 0.3:
            self.systems.append(self.words(1, 20))
        count = self.random.choice((0, 1, 1, 1, 1, 2))
        messages = [
            {"role": "system", "content": self.random.choice(self.systems)} for _ in range(count)
        ]
        if self.random.random() < 0.05:
            thoughts = f"{self.words(1, 4)} {THINK_MARKS[1]} {self.words(1, 4)}"
            messages.append({"role": "assistant", "content": thoughts})
        messages.append(
            {"role": "user", "content": self.words(0, self.random.choice((6, self.longest)))}
        )
        return messages


def _is_set_on(release: str, name: str) -> bool:
    return name == "prompt_cache_size" or release in FAMILY.having(FAMILY.option(name))


def _reads_beyond(release: str, family: str) -> bool:
    """True if a short step makes the class read memory beyond its own.

    Before #1072 the lengths of a batch are those of whole rests, and a chunked scan that is given
    them looks for its last row there, past the columns of the step.
    """
    rules = FAMILY.releases[-1].rules.classes[family]
    reads_past = rules.chunked and rules.scan_at_lengths
    return reads_past and not FAMILY.release(release).rules.server.segments


def _joins_by_chance(release: str, family: str) -> bool:
    """True if a fresh row that joins a prefill gets memory beyond the batch.

    In 0.31.2 a recurrent batch does not grow by such a row (#1169), and the array library does not
    check the number of a row.
    """
    skipped = FAMILY.release(release).rules.caches.arrays_extend == "skipped"
    return skipped and family not in {"llama", "gemma3_text"}


def drawn_drafts(random: Random, request: Request, most: int) -> list[list[int]]:
    """Drafts of every step: right in part."""
    reply, done, steps = request["reply"], 0, []
    while done < len(reply):
        count = max(0, min(request["max_tokens"] - done, most))
        truth = [*reply, *[NO_MARK] * most][done : done + count]
        draft = [token if random.random() < 0.6 else NO_MARK + 1 for token in truth]
        wrong = [i for i, (one, two) in enumerate(zip(draft, truth, strict=True)) if one != two]
        steps.append(draft)
        done += (wrong[0] if wrong else count) + 1
    return steps


def played_at(release: str) -> list[str]:
    """The families that a release has, in the order in which workloads take them."""
    return [each for each in PLAYED if FAMILIES[each].is_at(release, FAMILY.names())]


def _model(random: Random, release: str, family: str) -> dict[str, Any]:
    windows = windows_at(release, family)
    return {"family": family} | ({"window": random.choice(windows)} if windows else {})


def _drop(requests: Sequence[Request], *names: str) -> None:
    for request, name in product(requests, names):
        request.pop(name, None)


def _by_chance_alone(rules: ServerRules) -> tuple[str, ...]:
    """Fields whose timing is a race where requests are served alone, without turns between."""
    return ("leaves_after", *(() if rules.stop_words_end_generation else ("stop_words",)))


def draw_workload(
    release: str, seed: int, number: int, groups: int = 8, drawer: type[Drawer] = Drawer
) -> Workload:
    """A workload: a fresh server of a release and some groups of requests."""
    random = Random(f"mlx-lm/{seed}/{number}")
    rules = FAMILY.release(release).rules.server
    lacking = [each.name for each in FAMILY.fields if release not in FAMILY.having(each)]
    played = played_at(release)
    family = played[number % len(played)]
    model = _model(random, release, family)
    template = random.choice(("chatml", "chatml", "chatml", "think", "think-tools", "channel"))
    options: dict[str, Any] = {
        name: random.choice(values)
        for name, values in OPTIONS.items()
        if random.random() < 0.25
        and _is_set_on(release, name)
        and not (name == "prompt_cache_bytes" and family in OTHERS)
        and not (name == "prefill_step_size" and _reads_beyond(release, family))
    }
    if family in PACKABLE and _is_set_on(release, "kv_bits") and random.random() < 0.2:
        model["head_size"] = 64  # groups are never smaller than 32 numbers
        options |= {
            "kv_bits": random.choice((4, 8)),
            "kv_group_size": random.choice((32, 64)),
            "quantized_kv_start": random.choice((0, 12, 40)),
        }
    tokenizer = WordTokenizer(template, VOCABULARY)
    drawing = drawer(random, tokenizer, rules, longest=max((45, *windows_at(release, family))))
    steps = [drawing.group() for _ in range(random.randint(3, groups))]
    requests = [each for group in steps for each in group]
    _drop(requests, *lacking)
    if _joins_by_chance(release, family):
        options.pop("prompt_concurrency", None)
        _drop(requests, "at")
    if family in DRAFTED and random.random() < 0.15:
        most = random.choice((1, 2, 3))
        options |= {"draft_model": random.choice(("self", "dense")), "num_draft_tokens": most}
        for request in requests:
            request["drafts"] = drawn_drafts(random, request, most)
    if {"kv_bits", "draft_model"} & set(options) or alone(release, family):
        _drop(requests, *_by_chance_alone(rules))
    return {
        "id": f"{family}/{seed}/{number}",
        "version": release,
        "model": model,
        "template": template,
        "options": options,
        "steps": steps,
    }


def draw_models(release: str, seed: int, number: int) -> Workload:
    """A workload whose requests ask for one of two or three models."""
    workload = draw_workload(release, seed, number)
    random = Random(f"mlx-lm/models/{seed}/{number}")
    options, models, first = workload["options"], {}, workload["model"]["family"]
    requests = [each for group in workload["steps"] for each in group]
    others = [each for each in played_at(release) if each in CLASSES and each != first]
    names = ("second", "third")[: random.choice((1, 1, 2))]
    for name, family in zip(names, random.sample(others, len(names)), strict=True):
        models[name] = _model(random, release, family)
        if alone(release, family):
            _drop(requests, *_by_chance_alone(FAMILY.release(release).rules.server))
        if _joins_by_chance(release, family):
            options.pop("prompt_concurrency", None)
            _drop(requests, "at")
        if _reads_beyond(release, family):
            options.pop("prefill_step_size", None)
    for name in ("kv_bits", "kv_group_size", "quantized_kv_start"):
        options.pop(name, None)  # heads are too narrow
    for request in requests:
        name = random.choice(("", *models))
        if name:
            request["model"] = name
    return workload | {"id": f"models-{workload['id']}", "models": models}


LONGEST: Final = (300, 800, 2400)
"""Words of a chat at most."""

FIRST_WORD: Final = 24
"""Tokens from here on are plain words of every template."""

LARGER: Final = {"prefill_step_size": 32, "prompt_cache_bytes": 30}
"""By how much these options are larger than for short chats."""


@dataclass(slots=True)
class AgentDrawer(Drawer):
    """Workload of one to three users of agents; replies and disconnects as for others."""

    users: list[Agents] = field(default_factory=list)

    def group(self) -> list[Request]:
        if not self.users:
            sizes = Sizes.within(self.random.choice(LONGEST))
            count = self.random.choice((1, 2, 3))
            self.users = [Agents(self.random, self._fresh, sizes) for _ in range(count)]
        crowd = self.random.random() < 0.4
        users = self.users if crowd else [self.random.choice(self.users)]
        requests = [request for user in users for request in self._requests_of(user)]
        if len(requests) > 1:
            self._disturb(requests)
        return requests

    def _requests_of(self, user: Agents) -> list[Request]:
        requests = [self._of(conversation) for conversation in user.next()]
        user.learn([request["reply"] for request in requests])
        return requests

    def _fresh(self, count: int) -> list[int]:
        return [self.random.randrange(FIRST_WORD, VOCABULARY) for _ in range(count)]

    def _text(self, row: Row) -> str:
        return self.tokenizer.decode(as_tokens([each for each in row if each != END_MARK]))

    def _of(self, conversation: Conversation) -> Request:
        messages = conversation.messages
        turns = [
            {"role": message.role, "content": self._text(message.tokens)} for message in messages
        ]
        system = [{"role": "system", "content": self._text(row)} for row in conversation.head[:1]]
        request: Request = {"messages": [*system, *turns]}
        if conversation.head[1:]:
            request["tools"] = [self._text(row) for row in conversation.head[1:]]
        request["max_tokens"] = self.random.choice((1, 2, 5, 12, 40))
        request["stream"] = self.random.random() < 0.5
        request["reply"] = self.reply(request)
        return request


def draw_agents(release: str, seed: int, number: int) -> Workload:
    """A workload: a fresh server of a release, and the requests of users' agents.

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
