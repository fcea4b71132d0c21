"""Logs of the real servers: what was read, rebuilt and replayed is what the servers answered."""

import gzip
import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.cli.main import main
from cachesim.cli.why import in_passes
from cachesim.engines.family import Profile
from cachesim.engines.tokens import Rope
from cachesim.errors import InputError
from cachesim.model.presets import preset
from cachesim.report.consoles import plain_text
from cachesim.report.why import why_report
from cachesim.typed import there_is
from cachesim.why.explain.report import missing_of
from cachesim.why.explain.whole import UserSettings, read_files, rebuild, replays_of, why
from cachesim.why.extract import Origin, scenario_of
from cachesim.why.infer.evidence import Interval, counts_of
from cachesim.why.infer.settings import settings_of
from cachesim.why.read.lines import lines_of
from cachesim.why.read.reading import Reader
from cachesim.why.replay.other import options_for, play_workload, workload_of
from cachesim.why.replay.player import Player, ReplayRequest
from cachesim.why.replay.replayed import Replay
from tests.fixtures import Capture

DATA = Path(__file__).parent / "data"
KINDS = ["b9093-3", "b9538-3", "b11549-4", "b11549-3"]


def servers_of(kind: str) -> list[dict[str, Any]]:
    servers: list[dict[str, Any]] = json.loads(
        gzip.decompress((DATA / f"{kind}.json.gz").read_bytes())
    )["servers"]
    return servers


def replay_of(server: dict[str, Any], text: str | None = None) -> Replay:
    """The command line is told, as its user would: October's servers print nothing of it."""
    reader = Reader().take(lines_of(BytesIO((text or server["log"]).encode())))
    (log,) = [each for each in reader.servers if not each.is_empty]
    options = {k: v for k, v in server["options"].items() if k != "spec_type"}
    settings = settings_of(
        log, model=server["preset"], window=server["window"] or None, given=options
    )
    return rebuild(log, settings)


@pytest.mark.parametrize("kind", KINDS)
def test_the_replay_reuses_what_the_real_server_reused(kind: str) -> None:
    for server in servers_of(kind):
        replay = replay_of(server)

        answered = [
            (request.lengths.cached.value, request.replayed.cached)
            for request in replay.requests
            if request.is_comparable
        ]
        assert [log for log, _ in answered] == [again for _, again in answered]
        assert len(replay.requests) == server["requests"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_says_what_the_answers_said(kind: str) -> None:
    for server in servers_of(kind):
        requests = replay_of(server).requests

        for request, cached in zip(requests, server["cached"], strict=True):
            if cached is not None:
                assert request.lengths.cached.value == cached


def test_the_release_is_known_by_its_wording() -> None:
    found = {kind: replay_of(servers_of(kind)[0]).settings.release.value for kind in KINDS}

    assert found == {kind: kind.partition("-")[0] for kind in KINDS}


def dressed(text: str, dress: str) -> str:
    """Every line as some supervisor hands it on."""
    return "\n".join(dress.replace("LINE", line) for line in text.split("\n"))


@pytest.mark.parametrize(
    "dress",
    [
        "Jun 02 10:11:12 host llama-server[812]: LINE",
        "llama-1  | LINE",
        "[50123] LINE",
        "[pod/llama-7d9/llama] LINE",
        "2026-06-02T10:11:12.345678Z LINE",
        "\x1b[32mLINE\x1b[0m",
        "LINE\r",
    ],
)
@pytest.mark.parametrize("kind", ["b9093-3", "b9538-3"])
def test_what_supervisors_put_around_a_line_changes_nothing(kind: str, dress: str) -> None:
    server = servers_of(kind)[0]
    plain, other = replay_of(server), replay_of(server, dressed(server["log"], dress))

    assert told(other) == told(plain)


@pytest.mark.parametrize(
    "dress", ["Jun 02 10:11:12 host ik[812]: LINE", "ik-1  | LINE", "\x1b[32mLINE"]
)
def test_an_object_of_ik_llama_behind_a_prefix_is_read(dress: str) -> None:
    lines = [
        {"function": "launch", "msg": "slot is processing task", "id_slot": 0, "id_task": 7},
        {"function": "rm", "msg": "kv cache rm [p0, end)", "id_slot": 0, "id_task": 7, "p0": 12},
    ]
    text = dressed("\n".join(map(json.dumps, lines)), dress)

    (log,) = Reader().take(lines_of(BytesIO(text.encode()))).servers
    assert "ik_llama.cpp" == log.engine
    assert [(7, 12)] == [(request.task, request.first_cut) for request in log.requests]


@pytest.mark.parametrize("names", [("pod/llama-a/llama", "pod/llama-b/llama"), ("50123", "50124")])
def test_lines_of_two_servers_are_not_taken_for_those_of_one(names: tuple[str, str]) -> None:
    lines = servers_of("b9538-3")[0]["log"].split("\n")
    mixed = "\n".join(f"[{name}] {line}" for line in lines for name in names)

    with pytest.raises(InputError, match=f"mixed: {', '.join(names)}"):
        read_files([("two.log", BytesIO(mixed.encode()))])


@pytest.mark.parametrize(
    "words",
    [
        "unload_lru: models_max limit reached, removing LRU name=alpha",
        "tick: evicting idle LRU name=alpha for a queued request",
        "on_model_idl: model name=alpha went idle, giving up its slot to a queued request",
    ],
)
def test_a_router_that_ends_models_is_named(words: str) -> None:
    lines = servers_of("b9538-3")[0]["log"]
    both = "\n".join(dressed(lines, f"[{port}] LINE") for port in (50123, 50124))

    def shown(text: str) -> str:
        read = read_files([("router.log", BytesIO(text.encode()))])
        settings = UserSettings(profile=None, model=None, window=None, options={})
        return plain_text(*why_report(why(read, replays_of(read, settings)), worst=()))

    assert "A router started 2 servers" in shown(f"0.00.642.157 I srv {words}\n{both}")
    assert "The server was started 2 times" in shown(both)


def test_docker_and_powershell_logs_are_read_too() -> None:
    server = servers_of("b9538-3")[0]
    lines = server["log"].split("\n")
    docker = "\n".join(json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in lines)
    wide = BytesIO(b"\xff\xfe" + server["log"].encode("utf-16-le"))

    assert told(replay_of(server, docker)) == told(replay_of(server))
    (log,) = [each for each in Reader().take(lines_of(wide)).servers if not each.is_empty]
    assert len(log.requests) == server["requests"]


def told(replay: Replay) -> list[object]:
    return [
        (request.lengths, request.common, request.replayed.cached) for request in replay.requests
    ]


MLX_LINES = """
2026-11-20 21:49:11,429 - INFO - Starting httpd at 127.0.0.1 on port 8080...
2026-11-20 21:49:12,453 - INFO - Prompt processing progress: 165/165
"""


@pytest.mark.parametrize("order", [("llama.cpp", "mlx-lm"), ("mlx-lm", "llama.cpp")])
def test_servers_of_two_engines_are_kept_apart(order: tuple[str, str]) -> None:
    server = servers_of("b9538-3")[0]
    texts = {"llama.cpp": server["log"], "mlx-lm": MLX_LINES}
    read = read_files([(each, BytesIO(texts[each].encode())) for each in order])

    assert [*order] == [each.engine for each in read.servers]
    counts = {"llama.cpp": server["requests"], "mlx-lm": 1}
    assert counts == {each.engine: len(each.requests) for each in read.servers}
    found = why(read, replays_of(read, UserSettings()))
    assert {} == found["servers"][order.index("mlx-lm")]["options"]


def test_lines_of_two_engines_in_turn_are_refused() -> None:
    text = f"{MLX_LINES}{servers_of('b9538-3')[0]['log']}{MLX_LINES}"
    begun = re.sub(r"(?m)^.*(?:loading model|build).*\n", "", text)

    with pytest.raises(InputError, match=r"^both\.log:\d+: lines of llama.cpp and mlx-lm are"):
        read_files([("both.log", BytesIO(begun.encode()))])


def test_a_profile_of_another_engine_is_refused() -> None:
    read = read_files([("a.log", BytesIO(servers_of("b9538-3")[0]["log"].encode()))])

    with pytest.raises(InputError, match=r"--profile vllm@0.33.0: the log is of llama.cpp; name"):
        replays_of(read, UserSettings(profile="vllm@0.33.0"))


def test_servers_of_one_log_are_kept_apart() -> None:
    both = servers_of("b9538-3")[:2]
    text = "\n".join(server["log"] for server in both)

    servers = Reader().take(lines_of(BytesIO(text.encode()))).servers
    found = [len(server.requests) for server in servers if not server.is_empty]
    assert found == [server["requests"] for server in both]


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_on_the_same_server_repeats_itself(kind: str) -> None:
    server = servers_of(kind)[0]
    replay = replay_of(server)
    options = options_for(kind.partition("-")[0], server["options"])
    again = play_workload(workload_of(replay), replay.settings.profile, options)

    for request in replay.requests:
        if request.submitted is not None and not request.observed.cancelled:
            assert again.replayed[request.observed.number].cached == request.replayed.cached


QUIET = [
    (each["preset"], re.sub(r"loading model '[^']*'", "loading model 'm.gguf'", each["log"]))
    for each in servers_of("b11549-3")
]


@pytest.mark.parametrize(
    "log", [log for preset, log in QUIET if preset in {"recurrent", "hybrid-delta"}][:2]
)
def test_states_are_inferred_where_the_log_does_not_name_the_layers(log: str) -> None:
    (replay,) = replays_of(read_files([("quiet.log", BytesIO(log.encode()))]), UserSettings())

    assert ("hybrid", "bounded") == (replay.settings.preset.value, replay.settings.preset.how)
    assert len(replay.comparable) == replay.as_sent
    assert "The log does not name the model's layers." in " ".join(missing_of(replay))


@pytest.mark.parametrize("log", [log for preset, log in QUIET if preset == "dense"])
def test_full_attention_is_kept_where_it_reproduces_the_log(log: str) -> None:
    (replay,) = replays_of(read_files([("quiet.log", BytesIO(log.encode()))]), UserSettings())

    assert ("dense", "assumed") == (replay.settings.preset.value, replay.settings.preset.how)
    assert replay.agreeing == replay.as_sent


def test_a_model_that_the_user_names_is_kept() -> None:
    log = next(log for preset, log in QUIET if preset == "recurrent")
    (replay,) = replays_of(
        read_files([("quiet.log", BytesIO(log.encode()))]), UserSettings(model="dense")
    )

    assert ("dense", "given") == (replay.settings.preset.value, replay.settings.preset.how)
    assert replay.as_sent < replay.agreeing


# What a printed number stands for.


@given(st.integers(1, 300_000), st.data())
def test_a_ratio_of_three_decimals_leaves_the_count_within_its_bounds(
    whole: int, data: st.DataObject
) -> None:
    part = data.draw(st.integers(0, whole))

    found = there_is(counts_of(f"{float(np.float32(part) / np.float32(whole)):.3f}", whole))
    assert part in found
    assert found.high - found.low <= whole / 1000 + 1


def test_what_is_no_ratio_says_nothing() -> None:
    assert [counts_of(text, 100) for text in ("nan", "-1.000", "17", "", None)] == [None] * 5
    assert counts_of("0.500", None) is None
    assert Interval(3, 5).meet(Interval(6, 9)) is None


# Requests of a log on servers with fewer slots, and as scenarios of releases with fewer fields.


def test_a_slot_that_a_server_lacks_is_not_filled_from_a_file() -> None:
    player = Player("llama.cpp@b9093", preset("dense"), {"parallel": 1, "ctx_size": 512})
    player.read_back("1", 3)

    assert [[]] == [list(slot.prompt.tokens) for slot in player.engine.server.slots]


@pytest.mark.parametrize(("release", "fields"), [("b9093", [None]), ("b11549", ["message_spans"])])
def test_a_scenario_has_the_fields_that_its_release_takes(
    release: str, fields: list[str | None]
) -> None:
    request = ReplayRequest(
        number=0, prompt=Rope.of(1, 20), reply=Rope.of(2, 4), slot=-1, user_starts=(5,)
    )
    origin = Origin("log", f"llama.cpp@{release}", preset("dense"), {}, "dense", None)
    (step,) = scenario_of(origin, [request], 0, None).step

    assert fields == (list(step.options) if step.options else [None])


# The release of a profile, with patches that are laid over it and patches that are taken back.


@pytest.mark.parametrize(
    ("profile", "release"),
    [
        ("llama.cpp@b8672", "b8672"),
        ("llama.cpp@b9538+24143", "b9538"),
        ("llama.cpp@b8672-16382", "b8672"),
        ("llama.cpp@b8672-12161-14177", "b8672"),
        ("mlx-lm@0.31.1-main+1006", "0.31.1-main"),
    ],
)
def test_the_release_is_told_from_its_patches(profile: str, release: str) -> None:
    assert release == Profile.parse(profile).release


def test_a_scenario_is_tuned_on_a_release_without_a_patch(capsys: Capture) -> None:
    assert 0 == main(["why", "--tune", "llama.cpp-16382-no-checkpoints"])
    assert "2 requests replayed" in capsys.readouterr().out


def test_a_copy_of_the_server_shares_what_never_changes() -> None:
    player = Player("llama.cpp@b11549", preset("dense"), {})
    twin = player.fork()

    assert twin.engine.family is player.engine.family
    assert twin.engine.server is not player.engine.server


def test_a_request_that_names_the_slot_of_one_that_ended_early_here_does_not_wait() -> None:
    player = Player("llama.cpp@b11549", preset("dense"), {"parallel": 2, "ctx_size": 512})
    player.launch(ReplayRequest(0, prompt=Rope.of(1, 300), reply=Rope.of(2, 1)))
    player.advance(turns=2)  # it is refused, and the log has no end of it yet

    assert there_is(player.engine.reply(player.tickets[0])).slot == 1
    assert 0 == player.play(ReplayRequest(1, Rope.of(3, 100), Rope.of(4, 1), slot=1)).cached


def test_a_printed_ratio_holds_where_the_replay_cannot_have_what_the_slot_held() -> None:
    log = """\
llama_context: n_ctx_seq     = 98304
slot get_availabl: id  0 | task -1 | selected slot by LCP similarity, sim_best = 0.900 (> 0.100 thold), f_keep = 0.500
slot launch_slot_: id  0 | task 1 | processing task, is_child = 0
slot update_slots: id  0 | task 1 | n_tokens = 12874, memory_seq_rm [12874, end)
prompt eval time =  100.00 ms / 74923 tokens (1.00 ms per token)
       eval time =  10.00 ms / 1 tokens (1.00 ms per token)
slot      release: id  0 | task 1 | stop processing: n_tokens = 87797, truncated = 0
"""  # noqa: E501
    read = read_files([("server.log", BytesIO(log.encode()))])
    ((request,),) = [each.requests for each in replays_of(read, UserSettings(model="dense"))]

    assert (78_974, 79_061) == (request.common.low, request.common.high)
    assert "slot 0" == request.holder


def test_the_progress_of_a_replay_names_its_passes() -> None:
    (server,) = [each for each in servers_of("b11549-3") if each["preset"] == "recurrent"][:1]
    log = re.sub(r"loading model '[^']*'", "loading model 'm.gguf'", server["log"])
    read, told = read_files([("quiet.log", BytesIO(log.encode()))]), []

    replays_of(read, UserSettings(), in_passes(lambda _, words: told.append(words), 900))
    assert re.fullmatch(r"\d+ of 900 lines", told[0])
    assert re.fullmatch(r"\d+ of 900 lines, pass [2-9]", told[-1])


LIVES: dict[str, str] = json.loads(gzip.decompress((DATA / "lives.json.gz").read_bytes()))
"""Logs of real servers, without the lines that say nothing of caches."""


SLOW = (
    "checkpoints that are dropped unasked",
    "a ubatch that no line names",
    "window cells that four prompts share",
    "a prefix of a prompt that begins otherwise",
    "busy slots 4, 9, 12",
    "busy slots 13",
    "busy slots 7",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.thorough] * (name in SLOW)) for name in LIVES],
)
def test_a_log_is_reproduced_without_a_word_of_its_user(name: str) -> None:
    read = read_files([(name, BytesIO(LIVES[name].encode()))])
    replays = replays_of(read, UserSettings())

    requests = [request for replay in replays for request in replay.requests]
    unlike = [each for each in requests if not each.agrees and each.parent is None]
    differing = [each.observed.number for each in unlike]
    assert (differing, len(requests)) == ([], LIVES[name].count("processing task"))


OVERWRITTEN_IN = {
    "busy slots 4, 9, 12": [4, 9, 12],
    "busy slots 13": [13],
    "a busy slot of one": [13],
    "busy slots 7": [7],
}
"""Requests whose real replies were not those of an uncached run; the logs name further busy slots,
over which nothing was loaded.
"""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.thorough] * (name in SLOW)) for name in OVERWRITTEN_IN],
)
def test_what_was_loaded_over_a_busy_slot_is_told_by_its_counts(name: str) -> None:
    read = read_files([(name, BytesIO(LIVES[name].encode()))])
    (replay,) = replays_of(read, UserSettings())

    wrong = [each.observed.number for each in replay.requests if each.stale]
    assert wrong == OVERWRITTEN_IN[name]
