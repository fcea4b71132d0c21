"""ik_llama.cpp's logs: their lines are complete, so they are told without a replay."""

import json
from io import BytesIO
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.logs.whole import Wanted, read_files, replays_of, why


def keyed(message: str, slot: int, task: int, **keys: Any) -> str:
    numbers = " ".join(f"{name}={json.dumps(value)}" for name, value in keys.items())
    return (
        f'INFO [  some_function] {message} | tid="140" timestamp=1786800002 '
        f"id_slot={slot} id_task={task} {numbers}".rstrip()
        + "\n"
    )


def as_json(message: str, slot: int, task: int, **keys: Any) -> str:
    head = {"tid": "140", "level": "INFO", "function": "some_function", "msg": message}
    return json.dumps({**head, "id_slot": slot, "id_task": task, **keys}) + "\n"


def asked(
    task: int, *, held: int, equal: int, cut: int, in_prompt: int | None = None, between: str = "",
    write: Any = keyed,
) -> str:  # fmt: skip
    """Launched, compared with what the slot holds, and cut."""
    found = f"cache_size = {held}, n_past =  {equal}, n_past_prompt = {in_prompt or equal}"
    return (
        write("slot is processing task", 0, task)
        + f"======== Cache: {found}\n{between}"
        + str(write("kv cache rm [p0, end)", 0, task, p0=cut))
    )


def answered(task: int, *, read: int, said: int, held: int, write: Any = keyed) -> str:
    keys = {"n_ctx": 65536, "n_past": held, "n_system_tokens": 0, "n_cache_tokens": held}
    return (
        f"slot print_timing: id  0 | task {task} | \n"
        f"prompt eval time =   40000.00 ms / {read} tokens (    1.00 ms per token)\n"
        f"       eval time =    1000.00 ms / {said} tokens (   20.00 ms per token)\n"
    ) + str(write("slot released", 0, task, **keys, truncated=False))


def told(text: str) -> dict[str, Any]:
    read = read_files([("ik.log", BytesIO(text.encode()))])
    return why(read, replays_of(read, Wanted()))


def numbers(found: dict[str, Any]) -> list[tuple[int, int, int, int]]:
    keys = ("prompt_tokens", "cached", "processed", "common")
    return [tuple(each[key] for key in keys) for each in found["requests"]]  # type: ignore[misc]


FORCED = (
    "slot apply_checkp: id  0 | task 52 | forcing full prompt re-processing due to lack of cache "
    "data (likely due to SWA, see some page)\n"
)


@pytest.mark.parametrize("write", [keyed, as_json])
def test_every_number_is_printed(write: Any) -> None:  # ikawrakow/ik_llama.cpp#1310
    found = told(
        asked(0, held=0, equal=0, cut=0, write=write)
        + answered(0, read=39_936, said=50, held=39_985, write=write)
        + asked(52, held=39_985, equal=2_528, cut=0, between=FORCED, write=write)
        + answered(52, read=39_936, said=10, held=39_945, write=write)
    )
    second = found["requests"][1]

    assert numbers(found) == [(39_936, 0, 39_936, 0), (39_936, 0, 39_936, 2_528)]
    assert (second["known"]["cached"], second["known"]["common"]) == ("printed", "printed")
    assert second["replayed"] == {
        "cached": None, "processed": None, "slot": None, "error": None, "played": False,
    }  # fmt: skip
    assert [(each["rule"], each["from"], each["to"]) for each in second["why"]] == [
        ("full-reprocessing", 2_528, 0)
    ]
    assert "--ctx-checkpoints-interval" in found["causes"][0]["cure"]
    assert found["servers"][0]["profile"] == "ik_llama.cpp@8337e4cd3"
    assert "is not replayed" in found["servers"][0]["missing"][0]


def test_a_checkpoint_below_the_parting_is_told() -> None:
    restored = (
        "slot apply_checkp: id  0 | task 9 | restored context checkpoint took  1.50 ms (pos_min = "
        "2047, pos_max = 2047, n_tokens = 2048, n_past = 2048, size = 149.063 MiB)\n"
    )
    found = told(
        asked(0, held=0, equal=0, cut=0)
        + answered(0, read=5_000, said=11, held=5_010)
        + asked(9, held=5_010, equal=2_528, cut=2_048, between=restored)
        + answered(9, read=1_000, said=1, held=3_048)
    )

    assert numbers(found)[1] == (3_048, 2_048, 1_000, 2_528)
    assert [each["rule"] for each in found["requests"][1]["why"]] == ["memory-depth"]


def test_equal_text_in_other_tokens_is_counted_in_the_prompt() -> None:
    """600 tokens of the slot are the same text as 604 of the prompt."""
    found = told(
        asked(0, held=0, equal=0, cut=0)
        + answered(0, read=600, said=1, held=600)
        + asked(4, held=600, equal=600, in_prompt=604, cut=600)
        + answered(4, read=96, said=1, held=696)
    )

    assert numbers(found)[1] == (700, 604, 96, 600)


def test_a_request_without_timings_may_have_been_cancelled() -> None:
    keys = {"n_ctx": 4096, "n_past": 90, "n_system_tokens": 0, "n_cache_tokens": 90}
    found = told(
        asked(0, held=0, equal=0, cut=0)
        + keyed("slot released", 0, 0, **keys, truncated=False)
    )  # fmt: skip

    assert found["requests"][0]["cancelled"] is None
    assert found["requests"][0]["processed"] is None


def test_what_another_flag_would_do_is_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    file = tmp_path / "ik.log"
    file.write_text(asked(0, held=0, equal=0, cut=0) + answered(0, read=20, said=1, held=20))

    assert main(["why", str(file)]) == 0
    assert "20 prompt tokens: 0 reused, 20 processed" in capsys.readouterr().out
    assert main(["why", str(file), "--what-if", "b9538"]) == 2
    assert "is not replayed" in capsys.readouterr().err
    assert main(["tune", str(file)]) == 2
    assert "ik_llama.cpp cannot be played with other settings" in capsys.readouterr().err
