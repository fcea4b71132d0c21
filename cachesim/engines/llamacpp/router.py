"""The router of llama-server: a child server for each loaded model, `--models-max` of them.

    request for C:   loaded  [A B]     room? load C; else A (least recently used) ends, C is loaded
                                       A and B busy: C waits, or A ends with its requests

Upstream: `server_models`. A child is a process: slots, checkpoints and prompt cache end with it.
Loading takes no time here; requests that arrive before the next step arrive together.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from cachesim.engines.base import NO_ANSWER, ByteStore, Request, Ticket
from cachesim.engines.events import Event
from cachesim.engines.held import Amounts, Held, Texts
from cachesim.engines.llamacpp.observe import amounts, books, check_integrity, snapshot
from cachesim.engines.llamacpp.options import Options
from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.engines.llamacpp.server_context import Ended, ServerContext, open_server
from cachesim.engines.llamacpp.vocabulary.events import ModelLoaded, ModelUnloaded, ServerRestarted
from cachesim.engines.words import table_of
from cachesim.errors import ContractError, OptionError
from cachesim.model.adapters import adapted, adapted_in


class Router(LlamaCpp):
    """A llama-server of one model, or a router (`server_models`), which starts without any."""

    def _open(self, rules: ServerRules, options: Options, store: ByteStore | None) -> None:
        super()._open(rules, options, store)
        self._routes = len(self.networks) > 1
        self._loaded: dict[str, ServerContext] = {}  # least recently used first
        self._waiting: dict[str, ServerContext] = {}  # not loaded yet, with their requests
        self._promised: set[str] = set()  # waiting models for which an idle one is evicted
        self._unreached: set[str] = set()  # loaded by requests that have not reached them
        self._stopping: dict[str, str] = {}  # model -> the model that it is evicted for
        self._ended: dict[str, Ended] = {}
        self._files: dict[str, str] = {}  # slot files, and the models that saved them
        for name, network in self.networks.items():
            if adapted_in(network) is None:
                self.networks[name] = adapted(network, options.adapters)

    @property
    def _limit(self) -> int:
        return self._server.options.models_max or len(self.networks)

    def _turn_to(self, server: ServerContext) -> None:
        old = self._server
        server.events, server.replies = old.events, old.replies
        server.next_task, server.most_turns = old.next_task, old.most_turns
        self._server = server

    # --- the limit -------------------------------------------------------------------------------

    def submit(self, request: Request) -> Ticket:
        if self._routes:
            self._fields(request)
        self._aim(request.model)
        return super().submit(request)

    def _child(self, name: str) -> ServerContext:
        """The server of a model, loaded or to be loaded (upstream: `ensure_model_ready`)."""
        old = self._server
        rule, full = old.rules.requests.at_models_max, len(self._loaded) >= self._limit
        if name in self._waiting:
            return self._waiting[name]
        # Since #29217 a model that will be evicted does not take further requests: it is loaded
        # again.
        if name in self._loaded and not (rule == "waits" and name in self._stopping):
            self._loaded[name] = self._loaded.pop(name)
            return self._loaded[name]
        child = open_server(old.rules, self.networks[name], old.options)
        # #26572: until then the least recently used child ends, with the requests that it
        # processes.
        if full and rule == "ends-busy":
            self._unload(next(iter(self._loaded)), name)
        # Requests that wait go first: a new one does not overtake them, even if there is room.
        elif full or self._waiting:
            self._waiting[name] = child
            if rule != "promises":
                self._tick()
            # #26572 promises an idle model to the request. Trap: one model may be promised to two.
            elif full and (victim := self._victim()) is not None:
                self._promised.add(name)
                self._stopping.setdefault(victim, name)
            return child
        self._load(name, child)
        self._unreached.add(name)
        return child

    def _load(self, name: str, child: ServerContext) -> None:
        self._turn_to(child)
        child.ended = self._ended.get(name)
        self._loaded[name] = child
        child.emit(ModelLoaded(model=table_of(name), loaded=len(self._loaded)))

    def _unload(self, name: str, asked: str) -> None:
        """End a child server, and the requests that it is processing."""
        server = self._loaded.pop(name)
        self._turn_to(server)
        entries = server.cache.entries if server.cache else ()
        texts = [slot.prompt.tokens[:] for slot in server.slots] + [e.tokens[:] for e in entries]
        ended = Ended(model=table_of(name), asked=table_of(asked), held=tuple(filter(len, texts)))
        self._ended[name] = ended
        held = sum(map(len, ended.held))
        server.emit(ModelUnloaded(model=ended.model, asked=ended.asked, n_tokens=held))
        running = [slot.task for slot in server.slots if slot.task is not None]
        for task in (*running, *server.queue, *server.deferred):
            if not server.replies.get(task.ticket):
                self._refuse(task, NO_ANSWER, "the child server of this request ended")

    def _victim(self, *, unreached: bool = False) -> str | None:
        """The least recently used idle model (upstream: `pick_victim`)."""
        twice = self._server.rules.requests.at_models_max == "promises"
        for name, server in self._loaded.items():
            idle = not is_busy(server) or (unreached and name in self._unreached)
            # Trap: `promises` may choose a model twice that is already to be evicted.
            if idle and (twice or name not in self._stopping):
                return name
        return None

    def _tick(self, *, unreached: bool = False) -> None:
        """Evict idle models while requests wait for more room than is free (`tick`)."""
        while self._limit - len(self._loaded) + len(self._stopping) < len(self._waiting):
            victim = self._victim(unreached=unreached)
            if victim is None:
                break
            self._stopping[victim] = next(iter(self._waiting))

    def _make_room(self) -> bool:
        """End the evicted children, and load models that wait; True if any was loaded."""
        rule = self._server.rules.requests.at_models_max
        if rule in {"takes-loaded", "waits"}:
            self._tick(unreached=rule == "takes-loaded")
        # Evicted before anything is loaded: the limit is never exceeded.
        for name, asked in self._stopping.items():
            self._unload(name, asked)
        self._stopping.clear()
        self._unreached.clear()
        moved = False
        while self._waiting and len(self._loaded) < self._limit:
            name = next(iter(self._waiting))
            self._promised.discard(name)
            self._load(name, self._waiting.pop(name))
            moved = True
        return moved

    def _offer(self, name: str) -> None:
        """Evict a model that became idle, for one without a promise (`on_model_idle`)."""
        unserved = [waiting for waiting in self._waiting if waiting not in self._promised]
        taken = len(self._loaded) - len(self._promised)
        if unserved and taken >= self._limit and name not in self._stopping:
            self._promised.add(unserved[0])
            self._stopping[name] = unserved[0]

    def step(self) -> bool:
        if not self._routes:
            return super().step()
        worked = self._make_room()
        for name, server in self._loaded.items():
            busy = is_busy(server)
            self._turn_to(server)
            worked = super().step() or worked
            if busy and not is_busy(server) and server.rules.requests.at_models_max == "promises":
                self._offer(name)
        # Nothing worked and nothing is to be evicted: these requests would wait forever.
        if self._waiting and not worked and not self._stopping:
            self._time_out()
        return worked or bool(self._stopping)

    def _time_out(self) -> None:
        """End the requests that no step would serve: one idle model was evicted for two of them."""
        why = "one idle model was evicted for two requests, and no other becomes idle"
        for server in self._waiting.values():
            self._turn_to(server)
            for task in server.queue:
                self._refuse(task, NO_ANSWER, why)
        self._waiting.clear()
        self._promised.clear()

    # --- the children as one server --------------------------------------------------------------

    def _children(self) -> list[ServerContext]:
        return [*self._loaded.values(), *self._waiting.values()] if self._routes else [self._server]

    def _aim(self, model: str) -> None:
        if self._routes:
            self._turn_to(self._child(model))

    def slot_save(self, slot: int, name: str, model: str = "") -> Ticket:
        self._aim(model)
        self._files[name] = model
        return super().slot_save(slot, name)

    def slot_restore(self, slot: int, name: str, model: str = "") -> Ticket:
        if self._files.get(name, model) != model:
            raise OptionError(f"{table_of(model)} does not restore a file of another model here")
        self._aim(model)
        return super().slot_restore(slot, name)

    def slot_erase(self, slot: int, model: str = "") -> Ticket:
        self._aim(model)
        return super().slot_erase(slot)

    def set_lora(self, given: object) -> Ticket:
        if self._routes:
            raise OptionError("a request to set adapters names no model: a router has no set-lora")
        return super().set_lora(given)

    def _begin_anew(self, event: Event) -> None:
        """End the router, or let every loaded child sleep."""
        if not self._routes:
            super()._begin_anew(event)
            return
        if any(map(is_busy, self._children())):
            raise OptionError("the server is busy; let it finish first")
        if isinstance(event, ServerRestarted):
            self._server.emit(event)
            self._loaded.clear()
            self._ended.clear()
        for name, server in self._loaded.items():
            self._turn_to(server)
            super()._begin_anew(event)
            self._loaded[name] = self._server

    def cancel(self, ticket: Ticket) -> None:
        for server in self._children():
            self._turn_to(server)
            super().cancel(ticket)
        self._waiting = {name: context for name, context in self._waiting.items() if context.queue}
        self._promised &= self._waiting.keys()

    def tokens_held_for(self, ticket: Ticket) -> int:
        most = 0
        for server in self._children():
            self._turn_to(server)
            most = max(most, super().tokens_held_for(ticket))
        return most

    def snapshot(self) -> dict[str, Any]:
        return self._joined(snapshot)

    def books(self) -> dict[str, Any]:
        return self._joined(books)

    def _joined(self, of: Callable[[ServerContext], dict[str, Any]]) -> dict[str, Any]:
        """Slots and entries of all loaded children, each with its model."""
        if not self._routes:
            return of(self._server)
        joined: dict[str, Any] = {"slots": [], "prompt_cache": []}
        for name, server in self._loaded.items():
            for part, found in of(server).items():
                each = found if isinstance(found, list) else []
                joined.setdefault(part, []).extend({"model": name, **e} for e in each)
        return joined

    def held(self) -> Held:
        """The content of a server; of a router none, as each child has its own cells."""
        return Held() if self._routes else super().held()

    def texts(self) -> Texts:
        return Texts() if self._routes else super().texts()

    def amounts(self) -> Amounts:
        children = [amounts(child) for child in self._children()]
        return Amounts(
            **{
                field.name: sum(getattr(a, field.name) for a in children)
                for field in fields(Amounts)
            }
        )

    def check_integrity(self) -> None:
        loaded, most = len(self._loaded), self._limit
        if loaded > most:
            msg = f"llama.cpp: {loaded} models are loaded, {most} are allowed"
            raise ContractError(msg)
        for server in self._children():
            check_integrity(server)


def is_busy(server: ServerContext) -> bool:
    """True while a child has a request."""
    return bool(server.queue) or bool(server.deferred) or server.is_busy
