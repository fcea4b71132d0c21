"""What the tree has of a request, and what the storage is asked for. Follows
`init_next_round_input`, `_prefetch_kvcache` and what calls it.
"""

from collections.abc import Sequence
from typing import Final

from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.tree import Match, Tree

MOST_TOUCHED: Final = 128
"""`WAITING_QUEUE_PREFIX_MATCH_MAX`."""


def look_up(tree: Tree, req: Req, *, copies: bool = True) -> Match:
    """What the tree has of a request, with a slot for the state that it continues from.

    Follows `init_next_round_input`.
    """
    limit = max(req.num_tokens - 1, 0)
    match = tree.match_tokens(req.tokens[:limit], req, copies=copies)
    req.shared = match.slots
    req.prefix = req.protected = match.length
    req.last_node = match.node
    req.best = match.best
    req.on_host, req.window_on_host = match.on_host, match.window_on_host
    req.state_on_host = match.state_on_host
    req.branch = match.branch
    req.window_branch = match.window_branch
    return match


def ask(tree: Tree, req: Req, known_until: int | None = None) -> None:
    """Ask the storage for what the tree lacks; nothing is copied for it."""
    if tree.stores:
        tree.prefetch(req, look_up(tree, req, copies=False), known_until)


def ask_again(tree: Tree, waiting: Sequence[Req]) -> None:
    """Those whose turn it is ask once more. Follows `_process_storage_prefetch_retries`."""
    for req, known_until in tree.asks_again(waiting):
        req.reissues += 1
        ask(tree, req, known_until)


def asked_after_a_loss(tree: Tree, req: Req) -> bool:
    """Whether what was there at the last asking is not, so that it has to be asked for.

    Follows `_prefetch_after_device_hit_loss`.
    """
    if not tree.shrank(req):
        return False
    req.reissues += 1
    ask(tree, req)
    return True


def touch(tree: Tree, waiting: Sequence[Req]) -> None:
    """What the first requests in the queue would match counts as used."""
    for req in reversed(waiting[:MOST_TOUCHED]):
        tree.match(tree.key_of(req.tokens[: req.num_tokens]), req.extra_key)
