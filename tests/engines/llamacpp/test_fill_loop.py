"""The break of the loop that fills a batch: the jump lands where upstream's loop stops."""

from types import SimpleNamespace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from cachesim.engines.base import Ticket
from cachesim.engines.llamacpp.slot import Prompt, Task, TaskParams
from cachesim.engines.llamacpp.update_slots import break_at
from cachesim.units import Token

number = st.integers(0, 30)


@st.composite
def fillings(draw: st.DrawFn) -> dict[str, Any]:
    whole = draw(st.integers(1, 30))
    starts = draw(st.sets(st.integers(1, 30), max_size=4))
    return {
        "n_tokens": draw(st.integers(0, whole)),
        "whole": whole,
        "starts": starts,
        "last": max(starts, default=-1),
        "placement": draw(st.sampled_from(["every", "last-user", "user-starts"])),
        "do_checkpoint": draw(st.booleans()),
        "checkpoints": draw(st.lists(number, max_size=3)),
        "n_batch": draw(st.integers(1, 12)),
        "n_ubatch": draw(st.integers(1, 12)),
        "min_step": draw(st.sampled_from([0, 1, 3, 8])),
        "heeds_spacing": draw(st.booleans()),
        "split_at": draw(st.sampled_from([-1, -1, 5, 17])),
    }


def walked(case: dict[str, Any]) -> int:
    """One token after another, each test after each of them."""
    n_tokens = case["n_tokens"]
    while n_tokens < case["whole"]:
        n_tokens += 1
        if case["placement"] == "last-user" and n_tokens == case["last"]:
            break
        eligible = case["do_checkpoint"]
        if case["placement"] == "user-starts" and eligible and n_tokens in case["starts"]:
            held = case["checkpoints"]
            far = not held or n_tokens > held[-1] + case["min_step"]
            if far or n_tokens == case["last"] or not case["heeds_spacing"]:
                break
        offsets = (4 + case["n_ubatch"], 4) if eligible else ()
        if any(case["whole"] == n_tokens + min(case["n_batch"], offset) for offset in offsets):
            break
        if n_tokens == case["split_at"]:
            break
    return int(n_tokens)


def jumped(case: dict[str, Any]) -> int:
    server: Any = SimpleNamespace(
        n_batch=case["n_batch"],
        n_ubatch=case["n_ubatch"],
        options=SimpleNamespace(checkpoint_min_step=case["min_step"]),
        rules=SimpleNamespace(
            checkpoints=SimpleNamespace(
                placement=case["placement"], cuts_heed_spacing=case["heeds_spacing"]
            )
        ),
    )
    checkpoints: Any = [SimpleNamespace(n_tokens=checkpoint) for checkpoint in case["checkpoints"]]
    prompt = Prompt([Token(0)] * case["n_tokens"], checkpoints)
    slot: Any = SimpleNamespace(prompt=prompt, split_at=case["split_at"])
    params = TaskParams(user_starts=frozenset(case["starts"]), last_user_start=case["last"])
    task = Task(id=0, ticket=Ticket(0), tokens=(Token(0),) * case["whole"], params=params)
    return break_at(server, slot, task, do_checkpoint=case["do_checkpoint"])


@given(case=fillings())
@example(
    case={
        "n_tokens": 0, "whole": 20, "starts": {7}, "last": 7, "placement": "user-starts",
        "do_checkpoint": True, "checkpoints": [], "n_batch": 12, "n_ubatch": 8, "min_step": 8,
        "split_at": -1, "heeds_spacing": True,
    }
)  # fmt: skip
def test_the_jump_lands_where_the_loop_breaks(case: dict[str, Any]) -> None:
    assert walked(case) == jumped(case)
