"""A replay that is kept between two slices of its trace goes on as if it had not stopped."""

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachesim.errors import InputError
from cachesim.processes import pool_of
from cachesim.traces import slices
from cachesim.traces.fleet.cache_aware import Approximate, Node
from cachesim.traces.fleet.fleet import ROUTERS, Fleet
from cachesim.traces.fleet.serving import FleetRun, joined, parts_of
from cachesim.traces.playing import play
from cachesim.traces.replay import Cell, Known, Reader, Run
from cachesim.traces.slices import States
from cachesim.traces.source import Source
from cachesim.traces.sweep import open_store, play_cells
from cachesim.typed import of_kind, there_is
from tests.fixtures import Capture, Patch, complaint
from tests.traces.test_sweep import Here

ALL = 80
DAMAGED = "cut or damaged, or no state of a replay by this version; delete it"

SERVERS: list[tuple[str, str, dict[str, Any]]] = [
    ("vllm@0.33.0", "hybrid", {"num_gpu_blocks_override": 200}),
    ("vllm@0.19.1", "hybrid-swa", {"num_gpu_blocks_override": 200}),
    ("sglang@0.5.23", "dense", {"max_total_tokens": 3200}),
    ("sglang@0.5.23", "hybrid", {"max_total_tokens": 3200}),
    ("sglang@0.5.23", "hybrid-swa", {"max_total_tokens": 3200}),
    ("llama.cpp@b11549", "hybrid", {"ctx_size": 6144}),
    ("ik_llama.cpp@8337e4cd3", "dense", {}),
    ("llama-cpp-python@0.3.36", "dense", {}),
    ("mlx-lm@0.32.2", "hybrid", {"prompt_cache_size": 5}),
    ("marconi@paper", "hybrid", {}),
    ("transformers@5.24.0", "swa", {}),
]


def cell(
    server: tuple[str, str, dict[str, Any]] = SERVERS[0], fleet: Fleet | None = None, turn: int = 0
) -> Cell:
    profile, model, options = server
    return Cell(
        source=Source(name=f"made:{ALL}", scale=32, turn=turn),
        profile=profile,
        model=model,
        options=tuple(options.items()),
        fleet=fleet,
    )


def first(played: Cell, count: int) -> Cell:
    return replace(played, source=replace(played.source, first=count))


def in_slices(played: Cell, seams: Sequence[int], folder: Path) -> dict[str, Any]:
    """Stop at each seam, and go on from the file."""
    states = States(folder=folder, every=1000)
    for seam in seams:
        play(first(played, seam), seams=states)
    return play(played, seams=states)


@pytest.mark.parametrize("server", SERVERS)
def test_every_engine_goes_on_from_its_state(server: Any, tmp_path: Path) -> None:
    played = first(cell(server), 30)
    assert play(played) == in_slices(played, [20], tmp_path)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("fleet", [None, Fleet.of(3, "cache-aware")])
@pytest.mark.parametrize("turn", [0, 40])
@pytest.mark.parametrize("server", SERVERS)
def test_slices_end_as_the_whole_trace(
    server: Any, turn: int, fleet: Fleet | None, tmp_path: Path
) -> None:
    played = cell(server, fleet, turn)
    assert play(played) == in_slices(played, [1, 2, 37, 38, ALL], tmp_path)


@pytest.mark.thorough
@pytest.mark.nightly
@settings(max_examples=40)
@given(data=st.data())
def test_any_seams_of_any_fleet_do_not_show(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    router = data.draw(st.sampled_from(sorted(ROUTERS)))
    able = SERVERS[:5] if router in {"dynamo", "gateway"} else SERVERS
    changes = data.draw(st.sampled_from([(), ("die:1@0.02", "join:1@0.05"), ("drain:2@0.03",)]))
    turn = data.draw(st.sampled_from([0, 1, 40]))
    played = cell(data.draw(st.sampled_from(able)), Fleet.of(3, router, changes), turn)
    seams = sorted(data.draw(st.sets(st.integers(1, ALL), max_size=5)))
    assert play(played) == in_slices(played, seams, tmp_path_factory.mktemp("states"))


def test_requests_are_read_on_with_their_numbers_and_replies() -> None:
    reader = Reader(Known(5))
    parts = [islice(reader.requests(cell().source), 30), reader.requests(cell().source)]
    remember = replace(cell(), source=replace(cell().source, remember=5))
    for whole, sliced in zip(remember.requests(), chain(*parts), strict=True):
        assert (whole.number, whole.known) == (sliced.number, sliced.known)
        assert [*whole.reply, *whole.prompt] == [*sliced.reply, *sliced.prompt]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("parts", [1, 2])
def test_parts_are_played_in_slices(parts: int, workers: int, tmp_path: Path) -> None:
    played = cell(fleet=Fleet.of(4, "sticky", parts=parts))
    states = States(folder=tmp_path, every=15)
    for each in parts_of(first(played, 50)):  # what an interrupted command has left
        play(each, seams=states)
    assert parts == len([*tmp_path.iterdir()])
    with open_store(None) as store:
        (found,) = play_cells([played], store, lambda: pool_of(workers), seams=states)
    assert (
        joined(played, [play(each) for each in parts_of(played)]) == found
        if parts > 1
        else (play(played) == found)
    )


def test_no_request_before_the_seam_is_served_again(tmp_path: Path) -> None:
    played, told = cell(), list[int]()
    play(first(played, 60), seams=States(folder=tmp_path, every=30))
    play(played, told.append, States(folder=tmp_path, every=30))
    assert [*range(61, ALL + 1)] == told


class Interrupted(States):
    """States after whose second one the user interrupts."""

    def save(self, cell: Cell, run: Run) -> None:
        super().save(cell, run)
        if run.reader.read == 2 * self.every:
            raise KeyboardInterrupt


def test_an_interrupted_sweep_goes_on_from_its_last_seam(tmp_path: Path) -> None:
    played = cell()
    with open_store(None) as store:
        with pytest.raises(KeyboardInterrupt):
            play_cells([played], store, Here, seams=Interrupted(folder=tmp_path, every=20))
        assert 40 == there_is(States(folder=tmp_path, every=20).load(played)).reader.read
        found = play_cells([played], store, Here, seams=States(folder=tmp_path, every=20))
    assert [play(played)] == found


@pytest.mark.thorough
def test_a_replay_that_was_killed_goes_on(tmp_path: Path) -> None:
    words = "compare made:1500 -p vllm@0.33.0 --model dense --replicas 3 --jobs 1 --format json"
    command = [sys.executable, "-m", "cachesim", *words.split()]
    kept = [*command, "--states", str(tmp_path), "--slice", "100"]
    whole = subprocess.run(command, capture_output=True, check=True).stdout
    killed = subprocess.Popen(kept, stdout=subprocess.DEVNULL)
    while not [*tmp_path.glob("*.state")]:
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert -signal.SIGKILL == killed.wait()
    assert whole == subprocess.run(kept, capture_output=True, check=True).stdout


# -- files that are refused ------------------------------------------------------------------------


def kept(folder: Path, played: Cell) -> Path:
    folder.mkdir(exist_ok=True)
    play(first(played, 30), seams=States(folder=folder, every=30))
    return next(folder.glob("*.state"))


def again(folder: Path, played: Cell) -> str:
    with pytest.raises(InputError) as refused:
        play(played, seams=States(folder=folder, every=30))
    return str(refused.value)


def packed(whole: bytes, part: zipfile.ZipInfo) -> range:
    """The places of a part's bytes, behind a header of 30 bytes, its name and an extra field.

    A time in the header is read by nobody.
    """
    name, extra = (
        int.from_bytes(whole[part.header_offset + at :][:2], "little") for at in (26, 28)
    )
    begin = part.header_offset + 30 + name + extra
    return range(begin, begin + part.compress_size)


def test_a_file_that_is_cut_or_changed_is_refused(tmp_path: Path) -> None:
    file, draw = kept(tmp_path, cell()), random.Random(7)
    whole = file.read_bytes()
    with zipfile.ZipFile(file) as parts:
        data = [at for part in parts.infolist() for at in packed(whole, part)]
    for _ in range(30):
        at = draw.choice(data)
        for bytes_ in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            file.write_bytes(bytes_)
            assert DAMAGED in again(tmp_path, cell())
    for bytes_ in (b"", b"\n", b"[]\n", b"{}\n", b"\xff\xfe", b"PK\x03\x04"):
        file.write_bytes(bytes_)
        assert DAMAGED in again(tmp_path, cell())


def test_a_changed_byte_of_the_directory_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    expected = play(cell())
    file = kept(tmp_path, cell())
    whole = file.read_bytes()
    for at in range(whole.index(b"PK\x01\x02"), len(whole), 3):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with suppress(InputError):
            assert isinstance(States(folder=tmp_path, every=30).load(cell()), Run)
    file.write_bytes(whole)
    assert expected == play(cell(), seams=States(folder=tmp_path, every=1000))


def test_a_state_of_the_form_before_is_refused(tmp_path: Path) -> None:
    """It was a pickle behind a line of JSON."""
    file = kept(tmp_path, cell())
    file.write_bytes(json.dumps({"format": 1, "sha256": "0"}).encode() + b"\ncos\nsystem\n.")
    assert DAMAGED in again(tmp_path, cell())


@pytest.mark.parametrize("name", ["head.json", "nodes.json", "arrays"])
def test_a_part_that_unpacks_to_more_than_its_bound_is_refused(
    name: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(slices, "MOST_BYTES", 1 << 20)
    file = kept(tmp_path, cell())
    with zipfile.ZipFile(file) as packed:
        parts = {each: packed.read(each) for each in packed.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for each, data in parts.items():
            packed.writestr(each, bytes(50 << 20) if each == name else data)
    assert f"{name} unpacks to more than" in again(tmp_path, cell())


def test_the_state_of_other_options_is_refused(tmp_path: Path) -> None:
    mine = kept(tmp_path, cell(fleet=Fleet.of(2, "sticky")))
    name = kept(tmp_path / "two", cell()).name
    mine.rename(tmp_path / name)
    assert "another server or other options; delete it, or name another folder" in again(
        tmp_path, cell()
    )


def test_the_state_of_another_trace_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        json.dumps({"timestamp": 0, "input_length": 700, "output_length": 1, "hash_ids": [0, at]})
        for at in range(40)
    ]
    trace.write_text("\n".join(lines))
    played = replace(cell(), source=Source(name=str(trace)))
    kept(tmp_path / "states", played)
    trace.write_text("\n".join(lines[1:]))
    assert "the state of a replay with another trace" in again(tmp_path / "states", played)


def test_the_state_of_other_code_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    kept(tmp_path, cell())
    monkeypatch.setattr(slices, "code_digest", lambda: "0" * 64)
    assert "the state of a replay with other code of cachesim" in again(tmp_path, cell())


def test_a_state_behind_the_end_is_refused(tmp_path: Path) -> None:
    kept(tmp_path, cell())
    assert "the state after 30 requests, and --first is 20" in again(tmp_path, first(cell(), 20))


RUN = ["object", "cachesim.traces.replay", "Run", [], []]
HOSTILE: list[Any] = [
    {},
    [],
    {"root": 5, "nodes": []},
    {"root": [0], "nodes": []},
    {"root": [-1], "nodes": [["list", []]]},
    {"root": [0], "nodes": [["list", []]]},
    {"root": [0], "nodes": [["tuple", [[0]]]]},
    {"root": [0], "nodes": [["class", "builtins", "eval", []]]},
    {"root": [0], "nodes": [["class", "os", "system", []]]},
    {"root": [0], "nodes": [["function", "os", "system", []]]},
    {"root": [0], "nodes": [["function", "cachesim.traces.slices", "zipfile", []]]},
    {"root": [0], "nodes": [["function", "cachesim.cli.main", "main", []]]},
    {"root": [0], "nodes": [["object", "subprocess", "Popen", ["args"], ["id"]]]},
    {"root": [0], "nodes": [["object", "cachesim.traces.graph", "Path", [], []]]},
    {"root": [0], "nodes": [[*RUN[:3], ["__class__"], [5]]]},
    {"root": [1], "nodes": [RUN, ["method", "__getattribute__", [[0]]]]},
    {"root": [1], "nodes": [RUN, ["method", "__reduce__", [[0]]]]},
    {"root": [1], "nodes": [["random", [[1]]], ["method", "seed", [[0]]]]},
    {"root": [0], "nodes": [["array", "O", [1], 0, []]]},
    {"root": [0], "nodes": [["array", "<i8", [1 << 60], 0, []]]},
    {"root": [0], "nodes": [["array", "<i8", [1], -8, []]]},
    {"root": [0], "nodes": [["array", "V0", [1 << 60], 0, []]]},
    {"root": [0], "nodes": [["number", "O", "AAAAAAAAAAA=", []]]},
    {"root": [0], "nodes": [["generator", {"bit_generator": "os"}, []]]},
    {"root": [0], "nodes": [["network", "float", [[1]]], ["list", []]]},
    {"root": [0], "nodes": [["defaultdict", [[1]]], ["function", "os", "getcwd", []]]},
    {"root": [0], "nodes": [["deque", [-5]]]},
    {"root": [0], "nodes": [["no such tag", []]]},
]  # fmt: skip


@pytest.mark.parametrize("table", HOSTILE, ids=lambda table: str(table)[:80])
def test_other_objects_than_those_of_a_replay_are_refused(table: Any, tmp_path: Path) -> None:
    """With a right digest, as whoever writes such a file computes one."""
    file, nodes = kept(tmp_path, cell()), json.dumps(table).encode()
    with zipfile.ZipFile(file) as packed:
        head = json.loads(packed.read("head.json"))
    head["sha256"] = hashlib.sha256(nodes).hexdigest()
    with zipfile.ZipFile(file, "w") as packed:
        for name, data in (("head.json", json.dumps(head)), ("nodes.json", nodes), ("arrays", b"")):
            packed.writestr(name, data)
    assert "no state of a replay" in again(tmp_path, cell())


def test_a_tree_that_is_deeper_than_pythons_stack_is_kept(tmp_path: Path) -> None:
    played = cell(fleet=Fleet.of(2, "cache-aware"))
    run, states = FleetRun(played), States(folder=tmp_path, every=1)
    assert isinstance(run.loop.router, Approximate)
    node = run.loop.router.tree.root
    for _ in range(20_000):
        node.children[0] = Node(node.text, node)
        node = node.children[0]
    states.save(played, run)
    found = of_kind(FleetRun, states.load(played))
    assert isinstance(found.loop.router, Approximate)
    assert 20_001 == len([*found.loop.router.tree.nodes()])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--slice 10", "--slice is for --states: write --states FOLDER as well"),
        ("--states s --slice 0", "--slice is 0; write a whole number from 1"),
        ("--states file", "--states file: cannot be written: File exists"),
    ],
)
def test_wrong_flags_are_refused(
    flags: str, said: str, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert said in complaint(capsys, ["compare", "made:5", "-p", "vllm@0.33.0", *flags.split()])
