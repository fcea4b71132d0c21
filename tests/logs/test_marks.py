"""Where messages begin though no line says so, and what else two passes over a log find."""

from cachesim.engines.llamacpp.events import SlotReleased, TaskLaunched
from cachesim.logs.replay import Replay
from cachesim.logs.what_if import answers, asked_by
from tests.logs.test_open import (
    EARLIER,
    MAY,
    MAYS_SIMILAR,
    NEVER,
    a_chat_of_may,
    answered,
    cached,
    launched,
    may,
    released,
    replayed,
    says,
)

CHAT = "srv  params_from_: Chat format: peg-native\n"
JUNES_SIMILAR = "LCP similarity, sim_best = {sim} (> 0.100 thold), f_keep = {keep}"
SPACED = "srv load_model: context checkpoints enabled, max = 32, min spacing = 256\n"


def starts(replay: Replay) -> list[tuple[int, ...]]:
    return [each.asked.user_starts for each in replay.requests if each.asked is not None]


def test_chats_that_part_in_their_first_text_share_what_stands_before_a_message() -> None:
    replay = replayed(a_chat_of_may(), model="recurrent", profile="b9093")

    assert [each.common.value for each in replay.requests] == [0, 185]
    assert starts(replay) == [(182,), (182,)]


def test_of_several_places_where_chats_part_the_first_is_the_message() -> None:
    chats = (
        CHAT
        + may(1, NEVER, length=200, read=200, said=2)
        + CHAT
        + may(2, MAYS_SIMILAR.format(sim="0.600", keep="0.597"), length=200, read=80, said=2)
        + CHAT
        + may(3, MAYS_SIMILAR.format(sim="0.200", keep="0.199"), length=200, read=160, said=2)
    )
    replay = replayed(chats, model="dense", profile="b9093")

    assert cached(replay) == [(0, 0), (120, 120), (40, 40)]
    assert starts(replay) == [(37,), (37,), (37,)]


def june(task: int, chosen: str, *messages: str, length: int, read: int, said: int) -> str:
    """A chat of June, whose server names every state that it saves or restores."""
    return (
        CHAT
        + launched(task, chosen, level=MAY)
        + says(task, *messages, level=MAY)
        + answered(task, read=read, said=said, level=MAY)
        + released(task, length + said - 1, level=MAY)
    )


def saved(tokens: int, index: int = 1) -> str:
    place = f"pos_min = {tokens - 1}, pos_max = {tokens - 1}, n_tokens = {tokens}"
    return f"created context checkpoint {index} of 32 ({place}, size = 0.040 MiB)"


def test_a_turn_begins_after_the_reply_where_the_spacing_hides_its_state() -> None:
    replay = replayed(
        SPACED
        + june(1, NEVER, saved(82), length=86, read=86, said=1)
        + june(2, JUNES_SIMILAR.format(sim="0.878", keep="1.000"), length=98, read=12, said=2),
        model="recurrent",
        profile="b9538",
    )

    assert cached(replay) == [(0, 0), (86, 86)]
    assert starts(replay) == [(), (89,)]


def test_no_turn_begins_where_a_state_would_have_been_saved_and_is_not() -> None:
    replay = replayed(
        SPACED
        + june(1, NEVER, saved(82), length=86, read=86, said=400)
        + june(2, JUNES_SIMILAR.format(sim="0.980", keep="1.000"), length=495, read=10, said=2),
        model="recurrent",
        profile="b9538",
    )

    assert cached(replay) == [(0, 0), (485, 485)]
    assert starts(replay) == [(), ()]


LOOKING = "srv load:  - looking for better prompt, base f_keep = {keep}, sim = {sim}\n"
FOUND = "srv load:  - found better prompt with f_keep = {keep}, sim = {sim}\n"


def in_slot(slot: int, request: str, *search: str) -> str:
    """A request of another slot; the search comes before its launch."""
    chosen, _, rest = request.partition("\n")
    return f"{chosen}\n{''.join(search)}{rest}".replace("id  0", f"id  {slot}")


def test_an_empty_slot_that_loaded_an_entry_held_nothing_unknown_before() -> None:
    """The slot was empty; the line of its depth counts what it held after the load."""
    again = may(
        2,
        NEVER,
        "n_past = 165, slot.prompt.tokens.size() = 177, seq_id = 0, pos_min = 176, n_swa = 0",
        "Checking checkpoint with [172, 172] against 165...",
        "forcing full prompt re-processing due to lack of cache data",
        length=165,
        read=165,
        said=1,
    )
    search = LOOKING.format(keep="-1.000", sim="0.000"), FOUND.format(keep="0.932", sim="1.000")
    replay = replayed(
        in_slot(1, may(1, NEVER, length=177, read=177, said=1))
        + in_slot(0, may(4, NEVER, length=30, read=30, said=1))
        + in_slot(1, again, *search),
        model="recurrent",
        profile="b9093",
        options={"parallel": 2, "kv_unified": True},
    )

    assert cached(replay) == [(0, 0), (0, 0), (0, 0)]
    assert [each.replayed.slot for each in replay.requests] == [1, 0, 1]
    assert replay.invented == []


def test_a_prompt_that_was_held_whole_and_read_again_wanted_nothing_of_the_cache() -> None:
    """May's servers say that one token must be evaluated where they would have used it."""
    again = MAYS_SIMILAR.format(sim="1.000", keep="1.000")
    replay = replayed(
        may(1, NEVER, length=19, read=19, said=1) + may(2, again, length=19, read=19, said=1),
        model="hybrid-delta",
        profile="b9093",
    )

    assert [each.asked is not None and each.asked.cache_prompt for each in replay.requests] == [
        True,
        False,
    ]
    _, later = answers([replay], asked_by(replay.settings, ["b9538"]))
    assert later["processed_bounds"] == [38, 38]


def test_a_slot_file_is_thought_of_only_where_nothing_else_explains_what_a_slot_held() -> None:
    """The third request shows how the second began; only then is it in the right slot."""
    pinned = may(2, NEVER, length=27, read=27, said=4).split("\n", 1)[1]
    half = MAYS_SIMILAR.format(sim="0.500", keep="0.133")
    search = LOOKING.format(keep="0.133", sim="0.500"), FOUND.format(keep="1.000", sim="1.000")
    one = "need to evaluate at least 1 token for each active slot (n_past = 8, task.n_tokens() = 8)"
    on = MAYS_SIMILAR.format(sim="0.400", keep="1.000")
    replay = replayed(
        in_slot(1, may(1, NEVER, length=8, read=8, said=1))
        + pinned
        + in_slot(0, may(3, half, one, length=8, read=1, said=1), *search)
        + in_slot(0, may(4, on, length=20, read=12, said=1)),
        model="dense",
        profile="b9093",
        options={"parallel": 2, "kv_unified": True},
    )

    assert cached(replay) == [(0, 0), (0, 0), (7, 7), (8, 8)]
    assert [each.replayed.slot for each in replay.requests] == [1, 0, 0, 0]
    assert [each.asked is not None and each.asked.file for each in replay.requests] == [None] * 4


def test_a_request_at_work_goes_on_no_further_than_its_lines_say() -> None:
    """Its state was saved and it is not done: the next request comes while it is at work."""
    both = launched(1, NEVER, level=MAY).replace("id  0", "id  1") + launched(2, NEVER, level=MAY)
    read = says(2, "new prompt, n_ctx_slot = 4096, task.n_tokens = 100", level=MAY)
    read += says(2, "n_tokens = 0, memory_seq_rm [0, end)", saved(96), level=MAY)
    first = says(1, "new prompt, n_ctx_slot = 4096, task.n_tokens = 4", level=MAY)
    first += says(1, "n_tokens = 0, memory_seq_rm [0, end)", level=MAY)
    first += answered(1, read=4, said=3, level=MAY) + released(1, 6, level=MAY)
    replay = replayed(
        both
        + read
        + first.replace("id  0", "id  1")
        + in_slot(1, may(3, EARLIER, length=4, read=4, said=1))
        + answered(2, read=100, said=3, level=MAY)
        + released(2, 102, level=MAY),
        model="recurrent",
        profile="b9093",
        options={"parallel": 2},
    )

    events = replay.requests[1].replayed.events
    seen = [
        (type(each).__name__, each.slot)
        for each in events
        if isinstance(each, TaskLaunched | SlotReleased)
    ]
    assert seen == [
        ("TaskLaunched", 0),
        ("SlotReleased", 1),
        ("TaskLaunched", 1),
        ("SlotReleased", 0),
        ("SlotReleased", 1),
    ]
