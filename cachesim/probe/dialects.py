"""Kinds of servers: request bodies, answers, how an uncached one is got; found out by queries."""

import json
import math
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar, Final

from cachesim.errors import InputError
from cachesim.printable import printable
from cachesim.probe.answers import DISCONNECTED, Answer, Query, Row, Word
from cachesim.probe.connection import DENIALS, Connection, FaultError, StatusError, refusal
from cachesim.scenario.limits import SLOTS
from cachesim.typed import JsonObject, mapping

TOP: Final = 20
"""Likeliest tokens that are compared at each place."""

TEXT_TOP: Final = (10, 5)
"""Likeliest tokens on servers that allow fewer."""

WORDS: Final = 2000
"""Number of tokens that prompts are drawn from."""

MOST_WORDS, MOST_CONTEXT = 1 << 24, 1 << 30
"""Larger numbers of a server's own are no vocabulary and no context."""

VOCABULARIES: Final = (32_000, 512, 64)
"""Sizes that are tried where a server does not report its own."""


DAMAGE: Final = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
"""Errors of a reader that expects another form."""


def number_in(value: object, most: int) -> int:
    """A whole number that a server says of itself; 0 for anything else, and for a larger one."""
    return value if type(value) is int and 0 < value <= most else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Properties that a server reports of itself, None where it does not."""

    version: str = ""
    slots: int | None = None
    context: int | None = None  # tokens of one request
    parallel: int = 1  # requests that are computed at once; without slots an assumption
    words: tuple[Word, ...] = ()
    counts: bool = True  # it reports cached tokens
    probabilities: bool = True
    forces: bool = False  # replies can be forced
    options: Mapping[str, Any] = field(default_factory=dict)  # of a simulated server, as exported


class Dialect(ABC):
    """A server that is queried in its own words."""

    name: ClassVar[str]
    engine: ClassVar[str] = ""  # whose simulated releases may explain its counts
    cold_by: ClassVar[str] = ""  # the way to a cold answer; empty: another server is needed
    declines: ClassVar[bool] = False  # a request may leave the cache out
    cold_flags: ClassVar[str] = ""  # of a second process that keeps nothing
    cold_keeps: ClassVar[bool] = True  # a second process with those flags, in some memory
    one_sequence: ClassVar[bool] = False  # an unrelated prompt leaves nothing of the one before
    paged: ClassVar[str] = ""  # the engine whose flag names the size of a page, if no answer does
    unloads: ClassVar[bool] = False  # `erase` leaves nothing
    shown: ClassVar[Mapping[str, Any]] = {}  # fields by which a person sees less
    by_ids: ClassVar[bool] = True  # a prompt is token ids: a reply can be sent on as it was
    slot_files: ClassVar[bool] = False  # a slot can be saved to a file, and restored
    path: str

    def __init__(
        self, connection: Connection, words: tuple[str, ...] = (), *, chat: bool = False
    ) -> None:
        self.connection = connection
        self.listed = words  # that whoever runs it named
        self.chat = chat  # prompts are sent as messages
        self.facts = Facts()
        self.first: list[tuple[Query, Answer]] | None = []  # requests sent by `detect`
        self.answered = False  # a request, so far

    @abstractmethod
    def detect(self) -> bool:
        """Read the facts; False for a server of another kind."""

    @abstractmethod
    def body(self, query: Query, *, cold: bool) -> JsonObject:
        """The body of a request."""

    @abstractmethod
    def read(self, answer: JsonObject) -> Answer:
        """Parse an answer with status 200; damaged JSON may raise any exception."""

    def answer(self, query: Query, *, cold: bool = False) -> Answer:
        """Send a request and read its answer."""
        answer = self._answer(query, cold=cold)
        self.answered = self.answered or not answer.error
        if self.first is not None:
            self.first.append((replace(query, cache_prompt=not cold), answer))
        return answer

    def _answer(self, query: Query, *, cold: bool) -> Answer:
        body, tokens = self.body(query, cold=cold), len(query.prompt) + len(query.reply)
        try:
            if query.leaves:
                self.connection.abandon(self.path, {**body, "stream": True}, tokens, query.leaves)
                return Answer(error=DISCONNECTED)
            status, found = self.connection.post(self.path, body, tokens)
        except FaultError as fault:
            return Answer(error=str(fault), fatal=True)
        if status != 200 or not isinstance(found, dict) or "error" in found:
            return Answer(error=refusal(status, found), denied=status in DENIALS)
        try:
            return self.read(found).checked()
        except DAMAGE as error:
            what = f"{self.connection.url}{self.path} answered in a form that is not known here"
            return Answer(error=f"{what}: {type(error).__name__} {error}", fatal=True)

    def erase(self) -> None:  # noqa: B027 - most have no such request
        """Empty the cache, where HTTP can."""

    def emptied(self) -> bool:
        """Empty the cache; True if the server says that nothing is left, as after a start."""
        return False

    def slot_file(self, action: str, slot: int, name: str) -> str:
        """Save a slot to a file, or restore it from one; the server's refusal, if it refuses."""
        raise NotImplementedError

    def curl(self, query: Query, *, cold: bool = False) -> str:
        """The request as a line for a shell, for the server at $URL."""
        body = json.dumps({**self.body(query, cold=cold), **self.shown})
        return f'curl -sw "\\n" "$URL{self.path}" {self.head} -d {shlex.quote(body)}'

    @property
    def head(self) -> str:
        """The headers of a request, for `curl`."""
        key = self.connection.key
        authorized = f' -H "Authorization: Bearer ${key}"' if key else ""
        return f"-H 'Content-Type: application/json'{authorized}"

    def _try(self, words: tuple[Word, ...], *, forces: bool = False) -> bool:
        """Detect counts, probabilities and forced replies in an answer; True if successful."""
        self.facts = replace(self.facts, words=words, forces=forces)
        query = Query(prompt=words[:5], reply=(words[7], words[3]))
        first = self.answer(query, cold=True)
        if forces and first.tokens != query.reply:
            return self._try(words)
        self.facts = replace(
            self.facts, counts=first.cached is not None, probabilities=bool(first.rows)
        )
        return True

    def _words_of(self, vocabulary: int) -> tuple[int, ...]:
        first = min(1000, vocabulary // 2 + 9)
        return tuple(range(first, min(vocabulary, first + WORDS)))

    def _vocabulary(self) -> int:
        """The largest of some sizes whose last token is accepted."""
        error = ""
        for size in VOCABULARIES:
            error = self.answer(Query(prompt=(size // 2, size - 1), reply=(0,))).error
            if not error:
                return size
        raise InputError(f"no prompt of token ids is answered: {error}")


def _finite(row: Mapping[Word, float | None]) -> Row:
    return {token: p for token, p in row.items() if p is not None and math.isfinite(p)}


class LlamaServer(Dialect):
    """llama-server and ik_llama.cpp's, through `/completion`."""

    name = "llama-server"
    engine = "llama.cpp"
    slot_files = True
    cold_by = "cache_prompt: false"
    declines = True
    shown: ClassVar[Mapping[str, Any]] = {
        "n_probs": 5,
        "response_fields": ["timings/cache_n", "tokens", "completion_probabilities"],
    }
    path = "/completion"

    def detect(self) -> bool:
        props = mapping(self.connection.query("GET", "/props"))
        settings = mapping(props.get("default_generation_settings"))
        if not settings:
            return False
        models = mapping(self.connection.query("GET", "/v1/models"))
        meta = mapping(mapping(next(iter(models.get("data") or ()), None)).get("meta"))
        vocabulary = number_in(meta.get("n_vocab"), MOST_WORDS)
        self.facts = Facts(
            version=printable(str(props.get("build_info", "")))[:60],
            slots=(slots := number_in(props.get("total_slots"), 16 * SLOTS) or 1),
            parallel=min(slots, SLOTS),
            context=number_in(settings.get("n_ctx"), MOST_CONTEXT) or None,
        )
        return self._try(self._words_of(vocabulary or self._vocabulary()), forces=True)

    def body(self, query: Query, *, cold: bool) -> JsonObject:
        body: JsonObject = {
            "prompt": list(query.prompt),
            "n_predict": len(query.reply),
            "n_probs": TOP,
            "temperature": 0,
            "return_tokens": True,
            "ignore_eos": True,
            "cache_prompt": query.cache_prompt and not cold,
        }
        if query.slot >= 0 and not cold:
            body["id_slot"] = query.slot
        if self.facts.forces:
            body["grammar"] = "root ::= " + " ".join(f"<[{token}]>" for token in query.reply)
        return body

    def read(self, answer: JsonObject) -> Answer:
        timings = mapping(answer.get("timings"))
        cached = timings.get("cache_n")
        evaluated = answer.get("tokens_evaluated")
        if cached is None and evaluated is not None and "prompt_n" in timings:
            cached = evaluated - timings["prompt_n"]
        rows = tuple(map(_llama_row, answer.get("completion_probabilities", ())))
        tokens = answer.get("tokens")
        texts = [
            probability.get("content", "")
            for probability in answer.get("completion_probabilities", ())
        ]
        return Answer(
            cached=cached,
            prompt_tokens=evaluated,
            tokens=tuple(tokens or texts or [answer["content"]]),
            rows=rows,
            slot=answer.get("id_slot"),
        )

    def slot_file(self, action: str, slot: int, name: str) -> str:
        path = f"/slots/{slot}?action={action}"
        status, found = self.connection.exchange("POST", path, {"filename": name})
        return "" if status == 200 else refusal(status, found)

    def erase(self) -> None:
        for slot in range(self.facts.slots or 0):
            self.connection.query("POST", f"/slots/{slot}?action=erase", {})


def _llama_row(place: JsonObject) -> Row:
    """Log probabilities of one position; older servers print probabilities by text."""
    if "top_logprobs" in place:
        return _finite({logprob["id"]: logprob["logprob"] for logprob in place["top_logprobs"]})
    return {e["tok_str"]: math.log(e["prob"]) for e in place.get("probs", ()) if e["prob"] > 0}


EXPORTED: Final[Mapping[str, str]] = {
    "block_size": "block_size",
    "enable_prefix_caching": "enable_prefix_caching",
    "num_gpu_blocks": "num_gpu_blocks_override",
}
"""What vLLM says of its cache among its metrics, and the options of a simulated one."""

CACHE_LINE: Final = re.compile(r"^vllm:cache_config_info\{(.{1,4000})\} 1", re.MULTILINE)
SIZE: Final = re.compile(r"[1-9][0-9]{0,8}")
TRUTHS: Final = ("True", "False")
LABEL: Final = re.compile(r'(\w{1,60})="([^"]{0,200})"')


class VllmServer(Dialect):
    """vLLM, through `/v1/completions`: a fresh salt has no cached block."""

    name = "vLLM"
    engine = "vllm"
    cold_by = "a fresh cache_salt"
    path = "/v1/completions"
    _salts: ClassVar[Iterator[int]] = count()

    def detect(self) -> bool:
        version = mapping(self.connection.query("GET", "/version")).get("version")
        models = mapping(self.connection.query("GET", "/v1/models")).get("data") or ()
        if version is None or not models:
            return False
        self.model = str(mapping(models[0]).get("id", ""))
        context = number_in(mapping(models[0]).get("max_model_len"), MOST_CONTEXT) or None
        self.facts = Facts(
            version=printable(str(version))[:60],
            parallel=4,
            context=context,
            options=self._exported() | ({"max_model_len": context} if context else {}),
        )
        return self._try(self._words_of(self._vocabulary()))

    def _exported(self) -> dict[str, Any]:
        """What it says of its cache, in the form of options of a simulated server."""
        line = CACHE_LINE.search(self.connection.text("/metrics"))
        labels = dict(LABEL.findall(line[1])) if line else {}
        told = {option: labels.get(name, "") for name, option in EXPORTED.items()}
        sizes = {option: int(text) for option, text in told.items() if SIZE.fullmatch(text)}
        flags = {option: text == "True" for option, text in told.items() if text in TRUTHS}
        return sizes | flags

    def body(self, query: Query, *, cold: bool) -> JsonObject:
        body: JsonObject = {
            "model": self.model,
            "prompt": list(query.prompt),
            "max_tokens": len(query.reply),
            "temperature": 0,
            "logprobs": TOP,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "ignore_eos": True,
        }
        if cold:
            body["cache_salt"] = f"cachesim-{id(self)}-{next(self._salts)}"
        return body

    def read(self, answer: JsonObject) -> Answer:
        choice, usage = answer["choices"][0], mapping(answer.get("usage"))
        probabilities = mapping(choice.get("logprobs"))
        rows = tuple(
            _finite({_token_id(token): p for token, p in row.items()})
            for row in probabilities.get("top_logprobs") or ()
        )
        tokens = choice.get("token_ids") or map(_token_id, probabilities.get("tokens") or ())
        return Answer(
            cached=mapping(usage.get("prompt_tokens_details")).get("cached_tokens"),
            prompt_tokens=usage.get("prompt_tokens"),
            tokens=tuple(tokens) or (choice["text"],),
            rows=rows,
        )

    def erase(self) -> None:
        self.emptied()

    def emptied(self) -> bool:
        """Releases that do not say if it was done are not believed."""
        return mapping(self.connection.query("POST", "/reset_prefix_cache")).get("success") is True


def _token_id(text: str) -> Word:
    return int(text[9:]) if text.startswith("token_id:") else text


class SglangServer(Dialect):
    """SGLang, through `/generate`: a fresh extra key has no cached prefix."""

    name = "SGLang"
    engine = "sglang"
    cold_by = "a fresh extra_key"
    path = "/generate"
    _keys: ClassVar[Iterator[int]] = count()

    def detect(self) -> bool:
        info = self.connection.query("GET", "/get_model_info")
        if not isinstance(info, dict) or "model_path" not in info:
            return False
        about = mapping(self.connection.query("GET", "/get_server_info"))
        context = about.get("context_length") or about.get("max_req_input_len")
        version = printable(str(about.get("version", "")))[:60]
        self.facts = Facts(
            version=version, parallel=4, context=number_in(context, MOST_CONTEXT) or None
        )
        vocabulary = number_in(info.get("vocab_size"), MOST_WORDS) or self._vocabulary()
        return self._try(self._words_of(vocabulary))

    def body(self, query: Query, *, cold: bool) -> JsonObject:
        sampling = {"max_new_tokens": len(query.reply), "temperature": 0, "ignore_eos": True}
        body: JsonObject = {
            "input_ids": list(query.prompt),
            "sampling_params": sampling,
            "return_logprob": True,
            "top_logprobs_num": TOP,
        }
        if cold:
            body["extra_key"] = f"cachesim-{id(self)}-{next(self._keys)}"
        return body

    def read(self, answer: JsonObject) -> Answer:
        meta = answer["meta_info"]
        rows = (
            _finite({pair[1]: pair[0] for pair in row or ()})
            for row in meta.get("output_top_logprobs") or ()
        )
        tokens = [logprob[1] for logprob in meta.get("output_token_logprobs") or ()]
        return Answer(
            cached=meta.get("cached_tokens"),
            prompt_tokens=meta.get("prompt_tokens"),
            tokens=tuple(tokens or answer.get("output_ids") or [answer["text"]]),
            rows=tuple(rows),
        )

    def erase(self) -> None:
        self.connection.query("POST", "/flush_cache")


WORD: Final = re.compile(r"[A-Za-z0-9]+")
SEEDS: Final = ("the", "a w1 b 2", "once upon a time", "w3 w5")
ENOUGH_WORDS: Final = 40
MLX: Final = re.compile(r"(\d{1,6}\.\d{1,6}\.\d{1,6}\S{0,40}?)-\d{1,6}\.\d{1,6}\.\d")


class TextServer(Dialect):
    """Any server with OpenAI's completions or chats: texts alone, and no switch for the cache.

    The words of its prompts are taken from what it finds likely.
    """

    name = "OpenAI completions"
    path = "/v1/completions"
    by_ids = False  # its texts become other tokens beside others, or messages

    def __init__(
        self, connection: Connection, words: tuple[str, ...] = (), *, chat: bool = False
    ) -> None:
        super().__init__(connection, words, chat=chat)
        self.more: JsonObject = {}
        self._texts: dict[str, None] = {}

    def detect(self) -> bool:
        models = mapping(self.connection.query("GET", "/v1/models")).get("data") or ()
        named = {"model": str(mapping(models[0]).get("id"))} if models else {}
        found = self._first_form(named)
        if found is None:
            return False
        version = MLX.match(str(found.get("system_fingerprint", "")))
        if (version is not None) != (self.engine == MlxServer.engine):
            return False
        if version:
            self.facts = replace(self.facts, version=version[1], parallel=4)
        words = self.listed or self._collect_words()
        self._try(words)
        return self._try(words)  # a first answer has no count on some servers

    def _first_form(self, named: JsonObject) -> JsonObject | None:
        """The answer to the first form of a request that is accepted; `more` keeps the form."""
        rich = [{"logprobs": True, "top_logprobs": TEXT_TOP[0]}, {"logprobs": TEXT_TOP[1]}, {}]
        for path in ("/v1/completions", "/v1/chat/completions")[self.chat :]:
            for probabilities in rich:
                for model in ({}, named) if named else ({},):
                    self.path, self.more = path, {**probabilities, **model}
                    body = self.body(Query(prompt=("a",), reply=("a",)), cold=False)
                    try:
                        status, found = self.connection.post(path, body, 2)
                    except FaultError:
                        continue
                    if status == 200 and isinstance(found, dict) and found.get("choices"):
                        return found
        return None

    def _collect_words(self) -> tuple[str, ...]:
        """Words of its vocabulary: those it finds likely, which are sent in turn."""
        prompt: Sequence[str] = ()
        for seed in SEEDS:
            prompt = seed.split()
            for _ in range(4):
                self.answer(Query(prompt=tuple(prompt), reply=("",) * 24))
                if len(self._texts) > len(prompt) + 1:
                    prompt = list(self._texts)[-12:]
        words = tuple(self._texts)
        if len(words) < ENOUGH_WORDS:
            raise InputError(
                f"{self.connection.url} shows {len(words)} words of its vocabulary, which is too "
                "few to draw prompts from; name a file of words with --words"
            )
        return words

    def body(self, query: Query, *, cold: bool) -> JsonObject:
        body: JsonObject = {"prompt": " ".join(map(str, query.prompt))}
        if "chat" in self.path:
            body = {"messages": _messages(query)}
        return {**body, "max_tokens": len(query.reply), "temperature": 0, **self.more}

    def read(self, answer: JsonObject) -> Answer:
        choice, usage = answer["choices"][0], mapping(answer.get("usage"))
        found = mapping(choice.get("logprobs"))
        rows = [_text_row(row) for row in found.get("content") or ()]
        tokens = [self._word(max(row, key=row.__getitem__)) for row in rows if row]
        if found.get("top_logprobs"):
            rows = [_finite(logprob or {}) for logprob in found["top_logprobs"]]
            tokens = [self._word(token) for token in found["tokens"]]
        for row in rows:
            for token in row:
                self._word(token)
        text = choice.get("text", mapping(choice.get("message")).get("content"))
        return Answer(
            cached=mapping(usage.get("prompt_tokens_details")).get("cached_tokens"),
            prompt_tokens=usage.get("prompt_tokens"),
            tokens=tuple(tokens) or (text or "",),
            rows=tuple(rows),
        )

    def _word(self, token: object) -> Word:
        text = str(token).strip(" Ġ▁")
        if WORD.fullmatch(text) and not isinstance(token, int):
            self._texts.setdefault(text)
        return text


class MlxServer(TextServer):
    """mlx_lm.server: an uncached answer comes from a second process without a prompt cache."""

    name = "mlx_lm.server"
    engine = "mlx-lm"
    cold_flags = "--prompt-cache-size 0"


class PythonServer(TextServer):
    """llama-cpp-python's server: without its cache, an instance holds the last prompt alone."""

    name = "llama_cpp.server"
    cold_flags = "--cache False"
    one_sequence = True

    def detect(self) -> bool:
        info = mapping(mapping(self.connection.query("GET", "/openapi.json")).get("info"))
        if "llama.cpp Python API" not in str(info.get("title")) or not super().detect():
            return False
        version = printable(str(info.get("version", "")))[:60]
        self.facts = replace(self.facts, version=version)
        return True


class TransformersServer(TextServer):
    """`transformers serve`: without continuous batching it keeps nothing of a request."""

    name = "transformers serve"
    paged = "transformers"
    cold_flags = "--no-continuous-batching"
    cold_keeps = False

    def detect(self) -> bool:
        schema = mapping(self.connection.query("GET", "/openapi.json"))
        self.facts = replace(self.facts, parallel=4)
        return "/load_model" in mapping(schema.get("paths")) and super().detect()


class OllamaServer(TextServer):
    """Ollama, through `/api/generate` in raw mode: unloading its model empties the cache."""

    name = "Ollama"
    path = "/api/generate"
    unloads = True

    def detect(self) -> bool:
        version = mapping(self.connection.query("GET", "/api/version")).get("version")
        found = (mapping(self.connection.query("GET", f"/api/{at}")) for at in ("ps", "tags"))
        names = [model.get("name") for one in found for model in one.get("models") or ()]
        if version is None or not names or self.chat:
            return False
        self.more = {"model": str(names[0])}
        self.facts = replace(self.facts, version=printable(str(version))[:60])
        return self._try(self.listed or self._collect_words())

    def body(self, query: Query, *, cold: bool) -> JsonObject:
        return {
            **self.more,
            "prompt": " ".join(map(str, query.prompt)),
            "raw": True,
            "stream": False,
            "logprobs": True,
            "top_logprobs": TOP,
            "options": {"temperature": 0, "repeat_penalty": 1, "num_predict": len(query.reply)},
        }

    def read(self, answer: JsonObject) -> Answer:
        choice = {"text": answer["response"], "logprobs": {"content": answer.get("logprobs")}}
        return super().read({"choices": [choice]})

    def erase(self) -> None:
        self.connection.query("POST", self.path, {**self.more, "keep_alive": 0})


class LmStudioServer(TextServer):
    """LM Studio, through OpenAI's requests."""

    name = "LM Studio"

    def detect(self) -> bool:
        models = mapping(self.connection.query("GET", "/api/v0/models")).get("data") or ()
        return any("state" in mapping(model) for model in models) and super().detect()


def _messages(query: Query) -> list[JsonObject]:
    """The prompt as a chat: of several messages the first is the system's, the last the user's.

    prompt    p0 p1 | p2 | p3 p4 p5 | p6        |: the end of a message
    roles     system  user assistant  user      an odd end joins the last two
    """
    starts = (0, *query.messages)
    if len(starts) % 2 and len(starts) > 1:
        starts = starts[:-1]
    parts = [
        " ".join(map(str, query.prompt[start:end]))
        for start, end in zip(starts, (*starts[1:], None), strict=True)
    ]
    roles = ["system", *["user", "assistant"] * (len(parts) // 2)][: len(parts)]
    return [
        {"role": role, "content": part}
        for role, part in zip(roles if len(parts) > 1 else ["user"], parts, strict=True)
    ]


def _text_row(place: JsonObject) -> Row:
    tops = place.get("top_logprobs") or ()
    return _finite({top.get("token", top.get("id")): top["logprob"] for top in tops})


DIALECTS: Final[tuple[type[Dialect], ...]] = (
    LlamaServer, SglangServer, VllmServer, MlxServer, PythonServer, TransformersServer,
    OllamaServer, LmStudioServer, TextServer,
)  # fmt: skip


def dialect_of(connection: Connection, words: tuple[str, ...], *, chat: bool) -> Dialect:
    """The dialect of a server, by its answers; with `chat` one that takes messages."""
    try:
        connection.exchange("GET", "/v1/models", seconds=10)
    except StatusError:
        pass  # transformers serve, if no model was ever downloaded
    except FaultError as fault:
        raise InputError(str(fault)) from None
    for kind in DIALECTS:
        dialect = kind(connection, words, chat=chat)
        try:
            detected = dialect.detect()
        except InputError:
            raise
        except DAMAGE:  # another server answers at the same path, in a form of its own
            continue
        if detected:
            if chat and not isinstance(dialect, TextServer):
                raise InputError(
                    f"{connection.url}: prompts of {dialect.name} are sent as token ids; "
                    "leave --chat out"
                )
            return dialect
    if connection.denied:
        hint = "add --key VARIABLE if it requires an API key"
        raise InputError(f"{connection.url}: {connection.denied}; {hint}")
    raise InputError(
        f"{connection.url} answers as no server that is known here: it has none of "
        "/props, /get_model_info, /version, /v1/completions and /v1/chat/completions"
    )
