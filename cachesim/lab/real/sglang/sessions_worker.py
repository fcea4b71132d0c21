"""The sessions of a real scheduler: their first request opens them, the release closes them."""

import importlib

from cachesim.lab.real.worker_side import Json, Real, Stub


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
        """Close what is due, as a server does once a second."""
        if self.controller is not None:
            for session in self.held.values():
                if session.close_on_finish and self.controller._all_requests_finished(session):
                    self._check_turn(session)
            self.passed += 2
            self.controller.maybe_reap(self.passed)

    def _check_turn(self, session: Real) -> None:
        """Stop where a turn under way counts as over, which the simulator refuses."""
        turn = getattr(session, "turn", None)
        if turn is not None and not session._inflight and self.is_alive(turn):
            msg = "a turn under way counts as over"
            raise RuntimeError(msg)

    def records(self) -> list[Real]:
        """The records that sessions hold."""
        found: Json = getattr(self.tree, "session_records", dict)()
        return [each for each in found.values() if each.holds_kv]
