"""What a log shows only later, and what it leaves open altogether."""

from io import BytesIO
from typing import Any

from cachesim.logs.doubt import workloads_of
from cachesim.logs.replay import Replay
from cachesim.logs.what_if import answers, asked_by
from cachesim.logs.whole import Wanted, read_files, replays_of

OCTOBER = "0.10.000.000 I "
"""What October's releases put before a line; at the default verbosity only a few are printed."""

SIMILAR = "LCP similarity, f_sim_best = {sim} (> 0.100 thold), f_keep = {keep}"


def launched(task: int, chosen: str, *, level: str = OCTOBER) -> str:
    return (
        f"{level}slot get_availabl: id  0 | task -1 | selected slot by {chosen}\n"
        f"{level}slot launch_slot_: id  0 | task {task} | processing task, is_child = 0\n"
    )


def says(task: int, *messages: str, level: str = OCTOBER) -> str:
    return "".join(f"{level}slot update_slots: id  0 | task {task} | {m}\n" for m in messages)


def answered(task: int, *, read: int, said: int, level: str = OCTOBER) -> str:
    return says(
        task,
        f"prompt eval time =  100.00 ms / {read} tokens (1.00 ms per token)",
        f"       eval time =  10.00 ms / {said} tokens (1.00 ms per token)",
        level=level,
    )


def released(task: int, held: int, *, level: str = OCTOBER) -> str:
    return says(task, f"stop processing: n_tokens = {held}, truncated = 0", level=level)


def replayed(text: str, **wanted: Any) -> Replay:
    (replay,) = replays_of(read_files([("a.log", BytesIO(text.encode()))]), Wanted(**wanted))
    return replay


def cached(replay: Replay) -> list[tuple[int | None, int | None]]:
    return [(each.lengths.cached.value, each.replayed.cached) for each in replay.requests]


def test_an_empty_prompt_has_no_tokens_whatever_its_slot_holds() -> None:
    replay = replayed(
        launched(1, "LRU, t_last = -1")
        + answered(1, read=30, said=2)
        + released(1, 31)
        + launched(2, "LRU, t_last = 7")
        + says(2, "empty prompt - releasing slot")
        + answered(2, read=0, said=0)
        + released(2, 31),
        model="dense",
        profile="b11549",
    )

    assert replay.requests[1].lengths.prompt.value == 0
    assert cached(replay) == [(0, 0), (0, 0)]


def test_what_is_more_than_the_slot_shares_was_parked() -> None:
    """The slot keeps a quarter of itself, so what it held is parked, and the search finds more."""
    replay = replayed(
        launched(1, "LRU, t_last = -1")
        + answered(1, read=130, said=1)
        + released(1, 130)
        + launched(2, SIMILAR.format(sim="0.219", keep="0.262"))
        + answered(2, read=121, said=5)
        + released(2, 159)
        + launched(3, SIMILAR.format(sim="0.241", keep="0.214"))
        + answered(3, read=11, said=4)
        + released(3, 144),
        model="dense",
        profile="b11549",
    )

    first, _, third = (each.asked for each in replay.requests)
    assert first is not None
    assert third is not None
    assert third.prompt.common(first.prompt) == 130
    assert cached(replay)[2] == (130, 130)
    assert replay.requests[2].holder == "prompt cache entry 0"


def test_a_cancelled_prompt_is_as_long_as_its_last_state_shows() -> None:
    """A recurrent state of 2 tokens was restored: it lay 4 tokens before the end of a prompt."""
    replay = replayed(
        launched(1, "LRU, t_last = -1")
        + released(1, 177)
        + launched(2, SIMILAR.format(sim="0.400", keep="0.011"))
        + answered(2, read=3, said=4)
        + released(2, 8),
        model="recurrent",
        profile="b11549",
    )

    assert cached(replay)[1] == (2, 2)
    assert replay.requests[0].lengths.prompt.value == 6
    assert replay.requests[0].lengths.prompt.how == "assumed"


MAY = ""
"""May's releases put nothing before a line."""


def a_chat_of_may() -> str:
    """A chat that is sent again with another ending: where its last message begins is not said."""
    chat = "srv  params_from_: Chat format: peg-native\n"
    first = "LRU, t_last = -1"
    again = "LCP similarity, sim_best = 0.925 (> 0.100 thold), f_keep = 0.881"
    depth = "n_past = 185, slot.prompt.tokens.size() = 210, seq_id = 0, pos_min = 209, n_swa = 0"
    tried = "Checking checkpoint with [{0}, {0}] against 185..."
    return (
        f"{chat}{launched(1, first, level=MAY)}"
        + says(1, "new prompt, n_ctx_slot = 4096, n_keep = 0, task.n_tokens = 200", level=MAY)
        + says(1, "n_tokens = 0, memory_seq_rm [0, end)", level=MAY)
        + answered(1, read=200, said=11, level=MAY)
        + released(1, 210, level=MAY)
        + f"{chat}{launched(2, again, level=MAY)}"
        + says(2, "new prompt, n_ctx_slot = 4096, n_keep = 0, task.n_tokens = 200", level=MAY)
        + says(2, depth, tried.format(195), level=MAY)
        + says(2, "forcing full prompt re-processing due to lack of cache data", level=MAY)
        + says(2, "n_tokens = 0, memory_seq_rm [0, end)", level=MAY)
        + answered(2, read=200, said=1, level=MAY)
        + released(2, 200, level=MAY)
    )


def test_a_message_that_no_line_shows_leaves_bounds_for_releases_that_stop_at_it() -> None:
    replay = replayed(a_chat_of_may(), model="recurrent", profile="b9093")
    own, june, without = answers(
        [replay], asked_by(replay.settings, ["b9538", "ctx_checkpoints=0"])
    )

    assert len(workloads_of(replay)) == 5
    assert cached(replay) == [(0, 0), (0, 0)]
    assert own["processed_bounds"] == [400, 400]
    assert without["processed_bounds"] == [400, 400]
    assert june["processed"] == 400 - 182  # June's restores a state where the message begins
    assert june["processed_bounds"] == [400 - 182, 400]


def test_a_raw_prompt_has_no_messages_and_leaves_nothing_open() -> None:
    raw = a_chat_of_may().replace("Chat format", "format")
    replay = replayed(raw, model="recurrent", profile="b9093")
    _, june = answers([replay], asked_by(replay.settings, ["b9538"]))

    assert len(workloads_of(replay)) == 1
    assert june["processed_bounds"] == [400, 400]


def test_where_memory_would_not_be_cut_the_equal_prefix_is_known() -> None:
    replay = replayed(
        launched(1, "LRU, t_last = -1", level=MAY)
        + says(1, "new prompt, n_ctx_slot = 1024, n_keep = 0, task.n_tokens = 685", level=MAY)
        + says(1, "n_tokens = 0, memory_seq_rm [0, end)", level=MAY)
        + answered(1, read=685, said=20, level=MAY)
        + released(1, 704, level=MAY)
        + launched(2, "id 0", level=MAY)
        + says(
            2,
            "new prompt, n_ctx_slot = 1024, n_keep = 0, task.n_tokens = 704",
            "need to evaluate at least 1 token for each active slot (n_past = 704, "
            "task.n_tokens() = 704)",
            "n_tokens = 703, memory_seq_rm [703, end)",
            "failed to truncate tokens with position >= 703 - clearing the memory",
            level=MAY,
        )
        + answered(2, read=704, said=40, level=MAY)
        + released(2, 743, level=MAY),
        model="hybrid",
        profile="b9093",
    )

    assert (replay.requests[1].common.value, replay.requests[1].common.is_sure) == (704, True)
    assert cached(replay) == [(0, 0), (0, 0)]


def exchange(task: int, chosen: str, *, read: int, said: int, held: int) -> str:
    return launched(task, chosen) + answered(task, read=read, said=said) + released(task, held)


NEVER, EARLIER = "LRU, t_last = -1", "LRU, t_last = 7"


def of_october(text: str, model: str = "dense", **wanted: Any) -> Replay:
    return replayed(text, model=model, profile="b11549", **wanted)


def test_a_slot_chosen_by_its_age_shared_less_than_the_threshold() -> None:
    """119 of 121 tokens equal would have chosen the slot by similarity: a parked one was loaded."""
    replay = of_october(
        exchange(1, NEVER, read=250, said=2, held=251)
        + exchange(2, EARLIER, read=165, said=20, held=184)
        + exchange(3, SIMILAR.format(sim="0.795", keep="0.484"), read=23, said=8, held=119)
        + exchange(4, EARLIER, read=30, said=4, held=283)
        + exchange(5, EARLIER, read=2, said=2, held=122)
        + exchange(6, EARLIER, read=4, said=1, held=254)
    )

    assert replay.requests[4].holder == "prompt cache entry 1"
    assert cached(replay)[3:] == [(250, 250), (119, 119), (250, 250)]


def test_of_several_parked_ones_the_prompt_parts_where_another_did() -> None:
    """102 and 26 tokens, then others; at the end 128 of what begins with those 102 come back."""
    replay = of_october(
        exchange(1, NEVER, read=102, said=1, held=102)
        + exchange(2, SIMILAR.format(sim="0.797", keep="1.000"), read=26, said=20, held=147)
        + exchange(3, EARLIER, read=420, said=4, held=423)
        + exchange(4, EARLIER, read=8, said=1, held=136)
    )

    first, _, _, last = (each.asked for each in replay.requests)
    assert first is not None
    assert last is not None
    assert last.prompt.common(first.prompt) == 102
    assert cached(replay)[3] == (128, 128)


def test_an_empty_prompt_does_not_make_a_log_more_talkative() -> None:
    """Its line is printed at every level; what is cached still comes from who knows where."""
    empty = launched(0, NEVER) + says(0, "empty prompt - releasing slot") + released(0, 0)
    rest = (
        exchange(1, EARLIER, read=64, said=40, held=103)
        + exchange(2, EARLIER, read=361, said=4, held=364)
        + exchange(3, EARLIER, read=2, said=8, held=112)
    )
    replay = of_october(empty + rest)

    assert cached(replay)[3] == (103, 103)
    assert not any(each.is_told for each in replay.requests)


def test_chats_begin_with_the_same_token_and_their_turns_after_the_reply() -> None:
    text = (
        exchange(1, NEVER, read=50, said=10, held=59)
        + exchange(2, EARLIER, read=90, said=10, held=99)
        + exchange(3, SIMILAR.format(sim="0.792", keep="1.000"), read=26, said=4, held=128)
    )
    raw, chats = of_october(text, "swa"), of_october(text, "swa", chats=True)

    for replay, equal, starts in ((raw, 0, ()), (chats, 1, (102,))):
        first, second, third = (each.asked for each in replay.requests)
        assert first is not None
        assert second is not None
        assert third is not None
        assert second.prompt.common(first.prompt) == equal
        assert third.user_starts == starts


def of_may(text: str) -> Replay:
    return replayed(text, model="dense", profile="b9093")


def may(task: int, chosen: str, *messages: str, length: int, read: int, said: int) -> str:
    """A request of May, whose server prints lengths, depths and cuts."""
    at = length - read
    return (
        launched(task, chosen, level=MAY)
        + says(task, f"new prompt, n_ctx_slot = 4096, task.n_tokens = {length}", level=MAY)
        + says(task, *messages, f"n_tokens = {at}, memory_seq_rm [{at}, end)", level=MAY)
        + answered(task, read=read, said=said, level=MAY)
        + released(task, length + said - 1, level=MAY)
    )


MAYS_SIMILAR = "LCP similarity, sim_best = {sim} (> 0.100 thold), f_keep = {keep}"


def test_a_slot_that_holds_what_it_held_long_ago_was_read_from_a_file() -> None:
    again = MAYS_SIMILAR.format(sim="0.923", keep="0.952")
    replay = of_may(
        may(1, NEVER, length=60, read=60, said=4)
        + may(2, EARLIER, length=50, read=50, said=4)
        + may(3, again, length=65, read=5, said=4)
    )
    own, *_ = answers([replay], asked_by(replay.settings, ["b9538"]))

    third = replay.requests[2].asked
    assert third is not None
    assert third.file == (0, 0)
    assert cached(replay) == [(0, 0), (0, 0), (60, 60)]
    assert own["processed"] == 60 + 50 + 5


def test_chunks_that_were_moved_come_from_where_the_line_says() -> None:
    replay = of_may(
        may(1, NEVER, length=60, read=60, said=4)
        + may(
            2,
            MAYS_SIMILAR.format(sim="0.189", keep="0.159"),
            "reusing chunk with size 40, shifting KV cache [20, 60) -> [10, 50)",
            length=53,
            read=3,
            said=4,
        )
    )

    assert replay.settings.values["cache_reuse"] == 40
    assert replay.requests[1].common.value == 10
    assert cached(replay) == [(0, 0), (50, 50)]


def test_an_idle_slot_that_is_cleared_was_emptied_by_a_client() -> None:
    cleared = "slot prompt_clear: id  0 | task -1 | clearing prompt with 63 tokens\n"
    replay = of_may(
        may(1, NEVER, length=60, read=60, said=4)
        + cleared
        + may(2, EARLIER, length=60, read=60, said=2)
    )

    assert ("erase", 0) in replay.order
    assert cached(replay) == [(0, 0), (0, 0)]


def test_what_is_printed_of_a_request_after_its_end_is_no_other_request() -> None:
    reset = "slot        reset: id  0 | task {0} | \n"
    replay = of_may(
        may(1, NEVER, length=60, read=60, said=4)
        + reset.format(1)
        + may(2, MAYS_SIMILAR.format(sim="0.926", keep="1.000"), length=68, read=5, said=2)
        + reset.format(2)
    )

    assert cached(replay) == [(0, 0), (63, 63)]
