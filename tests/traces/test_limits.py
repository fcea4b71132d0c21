"""Limits in bytes count the small network's bytes, or those of the user's model, and name them."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.engines.held import sizes_of
from cachesim.errors import InputError
from cachesim.model.presets import preset
from cachesim.model.spec import Sizes
from cachesim.prove.llama_cpp.gguf import write_model
from cachesim.report.consoles import plain_text
from cachesim.report.sweep import sweep_report
from cachesim.traces.plan import plan_of
from cachesim.traces.replay import Cell, Measured, limits_of, play, row_of
from cachesim.traces.source import Source
from cachesim.traces.sweep import flat, sweep
from tests.fixtures import Capture, output

LLAMA = "llama.cpp@b11549"
MODEL = Measured(sizes=Sizes(token=131_072), by="--token-bytes 131072")


def row(measured: Measured | None = None, profile: str = LLAMA, **options: Any) -> dict[str, Any]:
    cell = Cell(
        source=Source(name="made:200", scale=32),
        profile=profile,
        model="dense",
        options=tuple(options.items()),
        measured=measured,
    )
    return row_of(cell, play(cell))


@pytest.mark.parametrize(
    ("profile", "options", "limits"),
    [
        (LLAMA, {}, {"cache_ram": 8192 << 20}),
        (LLAMA, {"cache_ram": 0}, {}),
        (LLAMA, {"cache_ram": -1}, {}),
        ("ik_llama.cpp@8337e4cd3", {"cache_ram": 7}, {"cache_ram": 7 << 20}),
        ("mlx-lm@0.32.2", {}, {}),
        ("mlx-lm@0.32.2", {"prompt_cache_bytes": "8GB"}, {"prompt_cache_bytes": 8 * 10**9}),
        ("vllm@0.33.0", {}, {}),
        ("sglang@0.5.23", {"hicache_size": 3}, {}),
        (
            "sglang@0.5.23",
            {"hicache_size": 3, "enable_hierarchical_cache": True},
            {"hicache_size": 3 * 10**9},
        ),
        ("marconi@paper", {}, {"capacity_bytes": 10**11}),
    ],
)
def test_flags_that_limit_bytes(profile: str, options: Any, limits: dict[str, int]) -> None:
    assert limits == limits_of(profile, options)


def test_a_token_of_the_trace_takes_as_much_as_the_users_model_has() -> None:
    toy, real = row(), row(MODEL)

    parked = {name: max(each["held"]["parked"]) for name, each in (("toy", toy), ("real", real))}
    assert 16 == toy["bytes"]["token"]  # 512 bytes for 32 tokens
    assert 131_072 == real["bytes"]["token"]
    assert 0 == toy["bytes"]["evictions"] < real["bytes"]["evictions"]
    assert 100 * parked["toy"] < parked["real"] <= 8192 << 20
    assert real["cached"] < toy["cached"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("profile", "options", "measured"),
    [
        (LLAMA, {"cache_ram": 1}, None),
        ("ik_llama.cpp@8337e4cd3", {"cache_ram": 1}, None),
        ("mlx-lm@0.32.2", {"prompt_cache_bytes": 50_000}, None),
        ("mlx-lm@0.32.2", {"prompt_cache_bytes": "1GB"}, MODEL),
        ("marconi@paper", {"capacity_bytes": 10**9}, None),
        (
            "sglang@0.5.23",
            {"hicache_size": 8, "enable_hierarchical_cache": True, "max_total_tokens": 1500},
            MODEL,
        ),
    ],
)
def test_evictions_for_bytes_are_counted_on_every_engine(
    profile: str, options: dict[str, Any], measured: Measured | None
) -> None:
    found = row(measured, profile, **options)

    assert found["bytes"]["evictions"] > 0
    assert f"{found['bytes']['evictions']:,} evictions for it" in found["bytes"]["note"]


@pytest.mark.thorough
def test_whose_bytes_were_counted_stands_in_every_format(capsys: Capture, tmp_path: Path) -> None:
    asked = ("compare", "made:60", "-p", LLAMA, "--model", "dense", "--scale", "32")
    small = "counts what a small network takes, 16 bytes a token of the trace"

    for form in ("text", "json", "jsonl"):
        assert small in " ".join(output(capsys, [*asked, "--format", form]).split())
    assert 0 == main([*asked, "--token-bytes", "131072"])
    given = "counts 131,072 bytes a token of the trace, by --token-bytes 131072"
    assert given in " ".join(capsys.readouterr().out.split())

    plan, page, table = (tmp_path / name for name in ("plan.toml", "page.html", "table.csv"))
    plan.write_text(
        "format = 1\n[[trace]]\nmade = 60\nscale = 32\n"
        f'[[server]]\nprofile = "{LLAMA}"\nmodel = "dense"\n'
    )
    assert 0 == main(["sweep", str(plan), "--report", str(page), "--csv", str(table)])
    assert small in " ".join(capsys.readouterr().out.split())
    assert small in page.read_text()
    (line,) = csv.DictReader(io.StringIO(table.read_text()))
    assert ("small network", "16.0", "0") == tuple(
        line[f"bytes.{name}"] for name in ("of", "token", "evictions")
    )


def test_a_server_without_a_limit_in_bytes_has_no_note() -> None:
    found = row(profile="vllm@0.33.0")

    assert "" == found["bytes"]["note"]
    assert "counts what" not in plain_text(*sweep_report([found]))


@pytest.mark.parametrize(
    ("sizes", "model", "complaint"),
    [
        (Sizes(token=9), "hybrid", "gives no bytes of recurrent layers, and the preset 'hybrid' h"),
        (Sizes(token=9), "recurrent", "write --model dense"),
        (Sizes(token=9, state=9), "dense", "--model hybrid or hybrid-delta or hybrid-mtp"),
        (Sizes(token=9, window=9), "dense", "gives bytes of layers with a window, and the preset"),
        (Sizes(), "dense", "gives no bytes of layers with full attention"),
    ],
)
def test_a_preset_of_other_layers_is_refused(sizes: Sizes, model: str, complaint: str) -> None:
    cell = Cell(
        source=Source(name="made:2", scale=32),
        profile=LLAMA,
        model=model,
        measured=Measured(sizes=sizes, by="--token-bytes 9"),
    )

    with pytest.raises(InputError, match=complaint):
        cell.check()


def test_a_window_is_as_long_as_the_models_file_has_it() -> None:
    measured = Measured(sizes=Sizes(token=4, window=2), by="--gguf f", window=1024)

    spec = measured.over(preset("swa"), 32, "llama.cpp")

    assert (32, Sizes(token=128, window=64)) == (spec.window, spec.sizes)


@pytest.mark.parametrize("model", ["dense", "hybrid", "swa"])
def test_a_models_file_has_the_bytes_of_its_layers(
    model: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "model.gguf"
    write_model(preset(model), file)
    spec = preset(model)

    asked = ("compare", "made:20", "-p", LLAMA, "--gguf", str(file), "--format", "json")
    _, found = json.loads(output(capsys, [*asked, "--model", model]))

    token, window, state = sizes_of(spec)
    assert {"token": token, "window": window, "state": state} == {
        name: found["bytes"][name] for name in ("token", "window", "state")
    }
    other = "hybrid" if model == "dense" else "dense"
    assert 2 == main([*asked, "--model", other])
    assert f"write --model {model}" in " ".join(capsys.readouterr().err.split())


def test_sizes_in_a_plan_are_those_of_its_server() -> None:
    server = {"profile": LLAMA, "model": "dense"}
    plan = {
        "format": 1,
        "trace": [{"made": 100, "scale": 32}],
        "server": [server | {"sizes": {"token": 9000}}],
    }

    (found,) = sweep(plan)

    assert 9000 == found["bytes.token"]
    assert found["bytes.by"] == "sizes = {token = 9000}"
    assert found == flat(json.loads(json.dumps(row_of_plan(plan))))


def row_of_plan(plan: dict[str, Any]) -> dict[str, Any]:
    (cell,) = plan_of(plan)
    return row_of(cell, play(cell))


@pytest.mark.parametrize(
    ("server", "complaint"),
    [
        ({"sizes": 5}, "sizes is 5; write a table of bytes"),
        ({"sizes": {"tokens": 5}}, "write a table of bytes"),
        ({"sizes": {}}, "write a table of bytes"),
        ({"sizes": {"token": -5}}, "token is -5; write a number of bytes"),
        ({"sizes": {"token": "x"}}, "token is 'x'; write a number of bytes"),
        ({"gguf": 5}, "gguf is 5; write a path in quotes"),
        ({"gguf": "f", "sizes": {"token": 5}}, "gguf and sizes are both given"),
    ],
)
def test_wrong_sizes_in_a_plan_are_refused(server: dict[str, Any], complaint: str) -> None:
    table = {"profile": LLAMA, "model": "dense"} | server

    with pytest.raises(InputError, match=complaint):
        plan_of({"format": 1, "trace": [{"made": 3, "scale": 32}], "server": [table]})
