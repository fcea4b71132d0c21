"""What people pasted into public threads: their numbers, in lines of our own, each explained.

An excerpt begins in the middle: what the slot held is known from its own lines alone.
"""

from io import BytesIO
from typing import Any

import pytest

from cachesim.logs.whole import Wanted, read_files, replays_of, why

SWA = "forcing full prompt re-processing due to lack of cache data (likely due to SWA or hybrid)"


def told(lines: str, **wanted: Any) -> dict[str, Any]:
    read = read_files([("thread.log", BytesIO(lines.encode()))])
    return why(read, replays_of(read, Wanted(**wanted)))


def the_request(lines: str, **wanted: Any) -> dict[str, Any]:
    """The last request of an excerpt."""
    found = told(lines, **wanted)
    assert any(
        "does not begin with the server's start" in n for n in found["servers"][0]["missing"]
    )
    return dict(found["requests"][-1])


def may(task: int, *messages: str, slot: int = 0) -> str:
    return "\n".join(f"slot update_slots: id  {slot} | task {task} | {m}" for m in messages)


def launched(task: int, chosen: str, *, slot: int = 0, level: str = "") -> str:
    return (
        f"{level}slot get_availabl: id  {slot} | task -1 | selected slot by {chosen}\n"
        f"{level}slot launch_slot_: id  {slot} | task {task} | processing task, is_child = 0\n"
    )


def finished(task: int, *, read: int, said: int, held: int, slot: int = 0) -> str:
    return (
        f"\nslot print_timing: id  {slot} | task {task} | \n"
        f"prompt eval time =  100.00 ms / {read} tokens (1.00 ms per token)\n"
        f"       eval time =  10.00 ms / {said} tokens (1.00 ms per token)\n"
        f"slot      release: id  {slot} | task {task} | stop processing: n_tokens = {held}, "
        "truncated = 0\n"
    )


def rules(request: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(each["rule"], each["from"], each["to"]) for each in request["why"]]


def test_infill_583_of_1099_tokens_match_and_all_are_read() -> None:  # llama.cpp#19408
    request = the_request(
        launched(7, "LCP similarity, sim_best = 0.530 (> 0.100 thold), f_keep = 0.531")
        + may(
            7,
            "new prompt, n_ctx_slot = 32768, n_keep = 0, task.n_tokens = 1099",
            "n_past = 583, slot.prompt.tokens.size() = 1098, seq_id = 0, pos_min = 1097, n_swa = 1",
            "Checking checkpoint with [1034, 1034] against 582...",
            SWA,
            "n_tokens = 0, memory_seq_rm [0, end)",
        )
        + finished(7, read=1099, said=1, held=1099),
        model="hybrid-delta",
    )

    assert (request["cached"], request["common"], request["again"]) == (0, 583, 583)
    assert rules(request) == [("full-reprocessing", 583, 0)]
    assert "at or before token 583" in request["why"][0]["sentence"]
    assert any("diverge at token 583" in line for line in request["log_says"])


def test_85490_of_88675_match_and_every_checkpoint_lies_above() -> None:  # llama.cpp#23013
    tried = [f"Checking checkpoint with [{at}, {at}] against 85490..." for at in
             range(88_600, 88_600 - 32 * 18, -18)]  # fmt: skip
    request = the_request(
        launched(9, "LCP similarity, sim_best = 0.964 (> 0.100 thold), f_keep = 0.964")
        + may(
            9,
            "new prompt, n_ctx_slot = 140032, n_keep = 0, task.n_tokens = 88675",
            "n_past = 85490, slot.prompt.tokens.size() = 88660, seq_id = 0, "
            "pos_min = 88659, n_swa = 0",
            *tried,
            SWA,
            "n_tokens = 0, memory_seq_rm [0, end)",
        )
        + finished(9, read=88_675, said=40, held=88_714),
        model="hybrid",
    )

    assert (request["common"], request["cached"]) == (85_490, 0)
    assert rules(request) == [("full-reprocessing", 85_490, 0)]
    assert (
        "the nearest of 32 that were tried begins at position 88,042"
        in (request["why"][0]["sentence"])
    )


def test_77481_restored_and_five_seconds_later_nothing() -> None:  # llama.cpp#22929, first log
    found = told(
        launched(1, "LCP similarity, sim_best = 0.990 (> 0.100 thold), f_keep = 0.998")
        + may(
            1,
            "Checking checkpoint with [77480, 77480] against 77500...",
            "restored context checkpoint (pos_min = 77480, pos_max = 77480, n_tokens = 77481, "
            "n_past = 77481, size = 149.063 MiB)",
        )
        + finished(1, read=800, said=30, held=78_310)
        + launched(2, "LCP similarity, sim_best = 0.985 (> 0.100 thold), f_keep = 0.989")
        + may(2, "Checking checkpoint with [77900, 77900] against 77450...", SWA)
        + finished(2, read=78_600, said=10, held=78_609),
        model="hybrid-delta",
    )
    first, second = found["requests"]

    assert (first["cached"], second["cached"]) == (77_481, 0)
    assert second["common"] == 77_450
    assert rules(second) == [("full-reprocessing", 77_450, 0)]


def test_a_conversation_that_only_grows_is_continued() -> None:  # llama.cpp#22929, second log
    found = told(
        launched(1, "LRU, t_last = -1")
        + may(1, "n_tokens = 0, memory_seq_rm [0, end)")
        + finished(1, read=30_000, said=100, held=30_099)
        + launched(2, "LCP similarity, sim_best = 0.968 (> 0.100 thold), f_keep = 1.000")
        + may(2, "n_tokens = 30099, memory_seq_rm [30099, end)")
        + finished(2, read=1_000, said=50, held=31_148),
        model="hybrid-delta",
        profile="b9538",
    )
    second = found["requests"][1]

    assert (second["cached"], second["replayed"]["cached"]) == (30_099, 30_099)
    assert second["why"] == []


def test_five_of_forty_tokens_match() -> None:  # llama.cpp#23269
    request = the_request(
        launched(3, "LCP similarity, sim_best = 0.125 (> 0.100 thold), f_keep = 0.100")
        + may(
            3,
            "new prompt, n_ctx_slot = 4096, n_keep = 0, task.n_tokens = 40",
            "n_past = 5, slot.prompt.tokens.size() = 50, seq_id = 0, pos_min = 49, n_swa = 0",
            SWA,
            "n_tokens = 0, memory_seq_rm [0, end)",
        )
        + finished(3, read=40, said=1, held=40),
        model="recurrent",
    )

    assert (request["common"], request["cached"]) == (5, 0)
    assert rules(request) == [("full-reprocessing", 5, 0)]


def test_a_perfect_match_of_which_all_is_read() -> None:  # llama.cpp#25913
    level = "0.10.000.000 I "
    request = the_request(
        launched(
            5,
            "LCP similarity, f_sim_best = 0.999 (> 0.100 thold), f_keep = 0.999",
            level=level,
        )
        + finished(5, read=5_892, said=4, held=5_895),
        model="hybrid-delta",
    )

    assert (request["prompt_tokens"], request["cached"]) == (5_892, 0)
    assert [rule for rule, _, _ in rules(request)] == ["state-missing"]
    assert "restored from a file" in request["why"][0]["sentence"]


def test_9853_of_9858_are_restored() -> None:  # llama.cpp#22746
    request = the_request(
        launched(4, "LCP similarity, sim_best = 1.000 (> 0.100 thold), f_keep = 0.995")
        + may(
            4,
            "new prompt, n_ctx_slot = 65536, n_keep = 0, task.n_tokens = 9858",
            "n_past = 9857, slot.prompt.tokens.size() = 9905, seq_id = 0, "
            "pos_min = 9904, n_swa = 0",
            "Checking checkpoint with [9852, 9852] against 9857...",
            "restored context checkpoint (pos_min = 9852, pos_max = 9852, n_tokens = 9853, "
            "n_past = 9853, size = 62.813 MiB)",
            "n_tokens = 9853, memory_seq_rm [9853, end)",
        )
        + finished(4, read=5, said=20, held=9_877),
        model="hybrid",
    )

    assert (request["cached"], request["processed"]) == (9_853, 5)
    assert request["again"] == 4


def test_no_checkpoint_at_or_before_260() -> None:  # llama.cpp#24714
    level = "0.10.000.000 I "
    request = the_request(
        launched(
            6,
            "LCP similarity, sim_best = 0.500 (> 0.100 thold), f_keep = 0.056",
            level=level,
        )
        + f"{level}slot update_slots: id  0 | task 6 | Checking checkpoint with [4700, 4700] "
        f"against 134...\n{level}slot update_slots: id  0 | task 6 | {SWA}\n"
        + finished(6, read=268, said=2, held=269),
        model="hybrid",
        profile="b9538",
    )

    assert (request["common"], request["cached"], request["prompt_tokens"]) == (134, 0, 268)
    assert rules(request) == [("full-reprocessing", 134, 0)]
    assert any(
        "another conversation, or one whose beginning changed" in line
        for line in request["log_says"]
    )


def test_a_checksum_in_the_system_prompt() -> None:  # llama.cpp#21793
    request = the_request(
        launched(8, "LCP similarity, sim_best = 0.309 (> 0.100 thold), f_keep = 0.310")
        + may(
            8,
            "new prompt, n_ctx_slot = 131072, n_keep = 0, task.n_tokens = 60120",
            "n_past = 18577, slot.prompt.tokens.size() = 59926, seq_id = 0, pos_min = 0, n_swa = 0",
            "n_tokens = 18577, memory_seq_rm [18577, end)",
        )
        + finished(8, read=41_543, said=60, held=60_179),
        model="dense",
    )

    assert (request["common"], request["cached"], request["processed"]) == (18_577, 18_577, 41_543)
    assert any(
        "diverge at token 18,577" in line and "client changed its history" in line
        for line in request["log_says"]
    )


def test_history_rewritten_at_32379(  # can1357/oh-my-pi#3541
) -> None:
    level = "0.10.000.000 I "
    request = the_request(
        launched(
            2,
            "LCP similarity, sim_best = 0.291 (> 0.100 thold), f_keep = 0.281",
            level=level,
        )
        + f"{level}slot update_slots: id  0 | task 2 | Checking checkpoint with [111000, 111000] "
        f"against 32379...\n{level}slot update_slots: id  0 | task 2 | {SWA}\n",
        model="hybrid-delta",
        profile="b9538",
    )

    assert request["bounds"]["prompt_tokens"] == [111_078, 111_459]
    assert (request["common"], request["cached"]) == (32_379, 0)
    assert rules(request) == [("full-reprocessing", 32_379, 0)]
    assert any("diverge at token 32,379" in line for line in request["log_says"])


def test_another_conversation_on_the_only_slot() -> None:  # can1357/oh-my-pi#3593
    level = "0.10.000.000 I "
    request = the_request(
        launched(3, "LRU, t_last = 1234567", level=level)
        + f"{level}slot update_slots: id  0 | task 3 | Checking checkpoint with [90000, 90000] "
        f"against 32...\n{level}slot update_slots: id  0 | task 3 | {SWA}\n",
        model="hybrid-delta",
        profile="b9538",
    )

    assert request["common"] == 32
    assert request["cached"] == 0
    assert request["known"]["prompt_tokens"] in {"bounded", "unknown"}


@pytest.mark.parametrize("lines", ["slot release: id  0 | task 4 | stop processing: n_tokens = 9"])
def test_a_request_whose_launch_is_cut_off_says_so(lines: str) -> None:
    request = the_request(f"{lines}, truncated = 0\n", model="dense", profile="b9538")

    assert "Its launch is not in the log: what its slot held is unknown." in request["log_says"]
