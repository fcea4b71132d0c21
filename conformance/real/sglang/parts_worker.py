"""Parts of `core_worker`: SGLang's tree core in Rust, and the sessions of its scheduler.

The core, which its servers use by default since 0.5.19, keeps its nodes to itself; their structure
is read back through the methods that the release's Python side has:

    collect_path_info(id)           parent, start and end of the node on its path
    get_component_device_value      whether a component is on the device
    component_has_host_value_only   whether it is on the host and not on the device
    get_last_hash_value             SHA-256 chain over the tokens up to the node's end

A session's first request opens it, and the release closes it.
"""

import importlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, count, pairwise
from typing import Final

from cachesim.prove.worker_side import Json, Real, Stub

GAP: Final = 4096
"""Consecutive node ids that may be unused: evicted between two readings."""

FULL, SWA, MAMBA = 0, 1, 2  # values of the release's `ComponentType`


class RustNodes:
    """The nodes of a Rust tree core, in the order of their paths."""

    def __init__(
        self, core: Real, *, page: int, bigrams: bool, kinds: Sequence[int], host: bool
    ) -> None:
        self.core, self.page, self.bigrams = core, page, bigrams
        self.kinds, self.host = kinds, host
        extension = importlib.import_module("sglang.srt.mem_cache.rust_tree_core.extension")
        self._hashes = extension.bindings.get_hash_str
        self._seed = importlib.import_module("sglang.srt.mem_cache.utils").storage_namespace_seed
        self._texts: dict[str, tuple[int, int]] = {}  # hash at the end of a page: text, its length
        self._known: list[list[int]] = []
        self._alive: list[int] = []
        self._next = 1

    def learn(self, text: list[int], extra_key: str | None) -> None:
        """Hash a text page by page, as the core does."""
        key = text[1:] if self.bigrams else text
        number = len(self._known)
        self._known.append(text)
        seed = self._seed(extra_key, None)
        hashes = self._hashes(array("q", text), seed, self.page, self.bigrams)
        for index, value in enumerate(hashes):
            length = min((index + 1) * self.page, len(key))
            self._texts.setdefault(value, (number, length))

    def walk(self) -> list[tuple[tuple[Real, ...], int, list[int]]]:
        """Paths as tokens, key lengths, and components held; with a host, both tiers.

        Where a component is on the device the core does not return whether the host has it too;
        then the second number repeats the first.
        """
        if not self.core.enable_storage:
            self.core.backfill_missing_hash_values()
        found = []
        for node, start, end in self._nodes():
            number, length = self._texts.get(self.core.get_last_hash_value(node), (-1, end))
            path = self._tokens(number, length)
            held = [tier for kind in self.kinds for tier in self._tiers(node, kind)]
            found.append((path, end - start, held))
        return sorted(found)

    def _nodes(self) -> Iterator[tuple[int, int, int]]:
        candidates, missed, next_id = chain(self._alive, count(self._next)), 0, self._next
        self._alive = []
        for node in candidates:
            try:
                is_root = self.core.is_root(node)
            except KeyError:
                missed += node >= next_id
                if missed > GAP:
                    return
                continue
            missed = 0
            self._alive.append(node)
            self._next = max(self._next, node + 1)
            if not is_root:
                last = self.core.collect_path_info([node])[0][-1]
                yield node, last.path_start, last.path_end

    def _tokens(self, number: int, length: int) -> tuple[Real, ...]:
        if number < 0:  # as long, and of the form of the others, among which it is sorted
            return ((-1, -1) if self.bigrams else -1,) * length
        text = self._known[number]
        if self.bigrams:
            return tuple(pairwise(text))[:length]
        return tuple(text[:length])

    def _tiers(self, node: int, kind: int) -> list[int]:
        device = int(self.core.get_component_device_value(node, kind) is not None)
        if not self.host:
            return [device]
        if kind == FULL:
            return [device, int(self.core.is_backuped(node))]
        on_host = self.core.component_has_host_value_only(node, kind)
        return [device, int(on_host or device)]


class Sessions:
    """The release's own `Session`s, and its `SessionController` where one streams or closes."""

    def __init__(self, make: Real, tree: Real, is_alive: Real) -> None:
        self.make, self.tree, self.is_alive = make, tree, is_alive
        self.held: dict[str, Real] = {}
        self.passed = 0.0
        self.controller: Real = None

    def request(self, received: Real, params: Json, refused: Real) -> Real:
        """A request of a session; of one that closes, what `handle_generate_request` makes."""
        streams, closes = params.pop("streaming", False), params.pop("close", False)
        received.session_params = Stub(**params)
        name = params["id"]
        if name not in self.held:
            more: Json = {"streaming": True} if streams else {}
            self.held[name] = self.make(1000, name, **more)
        session = self.held[name]
        if getattr(session, "close_on_finish", False):
            request = refused()
            request.set_finish_with_abort("close was requested")
            return request
        self._check_turn(session)
        more = {"eos_token_ids": set()} if hasattr(session, "streaming") else {}
        request = session.create_req(received, None, 1 << 30, **more)
        if streams and request.to_finish is None:
            session.turn = request
        if closes:
            if self.controller is None:
                module = importlib.import_module("sglang.srt.session.session_controller")
                self.controller = module.SessionController(self.tree)
                self.controller.sessions = self.held
            self.controller.close(Stub(session_id=name))
        return request

    def reap(self) -> None:
        """Close due sessions, as a server does once a second."""
        if self.controller is not None:
            for session in self.held.values():
                if session.close_on_finish and self.controller._all_requests_finished(session):
                    self._check_turn(session)
            self.passed += 2
            self.controller.maybe_reap(self.passed)

    def _check_turn(self, session: Real) -> None:
        """Stop where a running turn counts as over, which the simulator refuses."""
        turn = getattr(session, "turn", None)
        if turn is not None and not session._inflight and self.is_alive(turn):
            raise RuntimeError("a turn under way counts as over")

    def records(self) -> list[Real]:
        """The records that sessions hold."""
        found: Json = getattr(self.tree, "session_records", dict)()
        return [each for each in found.values() if each.holds_kv]
