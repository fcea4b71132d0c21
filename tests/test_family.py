"""One value says everything of an engine: one more engine, release or patch needs nothing else."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.engines import FAMILIES, Engine, Profile
from cachesim.engines.causes import Cause
from cachesim.engines.facts import causes_of
from cachesim.engines.family import Family, Patch, Release, register
from cachesim.engines.llamacpp.family import FAMILY as LLAMA_CPP
from cachesim.errors import OptionError, ProfileError
from cachesim.model.presets import tiny
from cachesim.play import run_scenario, scenario_schema
from tests.fake import vocabulary as fake_vocabulary
from tests.fake.family import FAKE
from tests.test_house import PACKAGE, imported_names

Capture = pytest.CaptureFixture[str]

STORY: dict[str, Any] = {
    "format": 1,
    "name": "story",
    "model": {"preset": "dense"},
    "spans": {"S": 20, "a": 5},
    "step": [{"name": "A", "prompt": "S", "predict": 1}, {"name": "B", "prompt": "S a"}],
}
FILE = """
format = 1
name = "story"
model = {{preset = "dense"}}
engine = {{name = "{engine}", profiles = ["{release}"]}}
spans = {{S = 20, a = 5}}
[[step]]
prompt = "S"
[[step]]
prompt = "S a"
"""


@pytest.fixture(name="engine")
def _engine() -> Iterator[Family[Any, Any]]:
    register(FAKE)
    yield FAKE
    del FAMILIES["fake"]


@pytest.fixture(name="page")
def _page(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], set[str]]:
    """The lines of a generated page, and the words in them."""
    monkeypatch.syspath_prepend(str(PACKAGE.parent / "docs"))

    def words(name: str) -> set[str]:
        module, _, function = name.partition(":")
        lines = getattr(import_module(f"pages.{module}"), function)().splitlines()
        return set(lines) | {word for line in lines for word in line.split()}

    return words


@pytest.fixture(name="newer")
def _newer() -> Iterator[Family[Any, Any]]:
    """llama.cpp with one more release, and one more patch."""
    newest = LLAMA_CPP.releases[-1]
    release = replace(newest, name="b99999", about="one of tomorrow", aliases=("b99998",))
    patch = Patch(
        name="99",
        pull=99,
        about="a proposal of tomorrow",
        fits=("b99999",),
        lay=lambda rules: replace(rules, cache=replace(rules.cache, load_consumes=False)),
    )
    newer = replace(
        LLAMA_CPP, releases=(*LLAMA_CPP.releases, release), patches=(*LLAMA_CPP.patches, patch)
    )
    register(newer)
    yield newer
    register(LLAMA_CPP)


def printed(capture: Capture, *arguments: str, status: int = 0) -> str:
    assert status == main(list(arguments))
    return " ".join(capture.readouterr().out.split())


def written(folder: Path, engine: str, release: str) -> str:
    file = folder / "story.toml"
    file.write_text(FILE.format(engine=engine, release=release))
    return str(file)


@pytest.mark.usefixtures("engine")
def test_one_more_engine_is_listed_and_shown(capsys: Capture) -> None:
    assert "fake one slot, longest common prefix" in printed(capsys, "list", "engines")
    assert "fake@r2" in printed(capsys, "list", "releases")
    assert "fake +7" in printed(capsys, "list", "patches")
    shown = printed(capsys, "list", "fake@r2-rc1")
    assert "fake@r2 forgets" in shown
    assert "real package: fake==2 patches: +7" in shown
    assert "upstream: nobody/fake#7 fits: r2 landed: between r2 and r3" in printed(
        capsys, "list", "fake+7"
    )


@pytest.mark.usefixtures("engine")
def test_the_flags_of_one_more_engine_are_shown_as_each_release_has_them(capsys: Capture) -> None:
    assert "keeps --keeps since r2" in printed(capsys, "list", "fake", "--flags")
    assert "hurry does nothing" in printed(capsys, "list", "fake", "--flags")
    assert "--keeps" not in printed(capsys, "list", "fake@r1", "--flags")


@pytest.mark.usefixtures("engine")
def test_one_more_engine_runs_and_is_checked(capsys: Capture, tmp_path: Path) -> None:
    run = printed(capsys, "run", written(tmp_path, "fake", "r1"), "--format", "json")
    assert '"profile": "fake@r1"' in run
    few = ("--examples", "6", "--jobs", "1", "--model", "dense")
    assert "fake@r1" in printed(capsys, "check", "fake@r1", *few)
    assert "logits off by" in printed(capsys, "check", "fake@r3", *few, status=1)


@pytest.mark.usefixtures("engine")
def test_one_more_cause_is_in_every_report(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    """A value where the engine declares its causes, and the branch that applies it."""
    cause = Cause(
        id="absent-minded",
        sentence="the server had {held} tokens in mind and lost half of them",
        about="It thinks of other things.",
        fields=("held",),
    )
    monkeypatch.setattr(fake_vocabulary, "FORGETFUL", cause)
    story = written(tmp_path, "fake", "r2")

    assert "The server had 27 tokens in mind and lost half of them" in printed(capsys, "run", story)
    assert '"rule": "absent-minded"' in printed(capsys, "run", story, "--format", "json")
    assert cause in causes_of("fake")  # what the pages and the schema ask


@pytest.mark.thorough
def test_one_more_key_of_a_step_is_read_where_steps_are_played() -> None:
    """`format` declares it, `session` hands it on, `checks` says what it does not go with.

    What a key does to the tokens of a prompt stands where prompts are made.
    """
    for key in ("slot", "cache_prompt", "drafts", "completions", "predict", "options"):
        readers = {
            str(path.relative_to(PACKAGE))
            for room in ("scenario", "play", "report", "cli", "verify", "learn")
            for path in (PACKAGE / room).rglob("*.py")
            if "cachesim.scenario.format.Step" in imported_names(path)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and node.attr == key
            if isinstance(node.value, ast.Name) and node.value.id == "step"
        }
        makes_prompts = {"scenario/prompts.py"} if key == "options" else set()
        assert readers <= {"play/session.py", "scenario/checks.py"} | makes_prompts, key


@pytest.mark.thorough
@pytest.mark.usefixtures("engine")
def test_one_more_engine_stands_in_the_documentation(page: Callable[[str], set[str]]) -> None:
    assert {"## fake", "`r2`"} <= page("releases:page")
    assert {"`keeps`", "`hurry`"} <= page("flags:page")
    assert "`request-served`" in page("events:page")


@pytest.mark.usefixtures("engine")
def test_a_scenario_for_one_more_engine_needs_no_other_schema() -> None:
    assert "enum" not in scenario_schema()["properties"]["engine"]["properties"]["name"]


def test_one_more_release_and_patch_are_listed_shown_and_played(
    newer: Family[Any, Any], capsys: Capture, tmp_path: Path
) -> None:
    assert "b99999" in printed(capsys, "list", "releases")
    assert "a proposal of tomorrow" in printed(capsys, "list", "+99")
    assert "one of tomorrow" in printed(capsys, "list", "b99998")
    assert newer.names()[-1] in newer.having(newer.option("spec_type"))
    story = written(tmp_path, "llama.cpp", "b99998+99")
    assert "llama.cpp@b99999+99" in printed(capsys, "run", story, "--format", "json")
    few = ("--examples", "3", "--jobs", "1", "--model", "dense")
    assert "llama.cpp@b99999" in printed(capsys, "check", "llama.cpp@b99999", *few)


@pytest.mark.usefixtures("newer")
def test_one_more_release_and_patch_stand_in_the_documentation(
    page: Callable[[str], set[str]],
) -> None:
    words = page("releases:page")
    assert "`b99999`" in words
    assert any(word.startswith("[`99`](") for word in words)


def test_rules_that_no_release_has_are_played_from_a_value() -> None:
    newest = LLAMA_CPP.releases[-1]
    rules = replace(newest.rules, cache=replace(newest.rules.cache, load_consumes=False))
    trial = replace(newest, name="trial", rules=rules, package=None)
    family = replace(LLAMA_CPP, releases=(*LLAMA_CPP.releases, trial))

    server: Any = Engine.create("llama.cpp@trial", model=tiny("dense"), family=family)

    assert not server.server.rules.cache.load_consumes
    assert "trial" not in FAMILIES["llama.cpp"].names()


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("llama.cpp@b9540", r"no llama\.cpp release 'b9540'; the nearest are b9538 and b"),
        ("llama.cpp@b1", r"the nearest is b"),
        ("mlx-lm@0.31.9", r"the nearest are 0\.31\.3 and 0\.32"),
        ("ik_llama.cpp@abc", r"there are d2da6da05, 8337e4cd3"),
        ("vLLM-like@1", r"there is no engine 'vLLM-like'; there are ik_llama\.cpp"),
        ("llama.cp@b9538", r"did you mean 'llama\.cpp'"),
        ("mlx-lm@0.32.2+1006", r"'1006' does not fit mlx-lm@0\.32\.2; it fits 0\.31\.1-main"),
        ("llama.cpp@b11549+24143+24143", r"laid twice over llama\.cpp@b11549; write it once"),
        ("mlx-lm@after-906+923+923", r"laid twice"),
        ("ik_llama.cpp@d2da6da05+1889+1889", r"laid twice"),
        ("ik_llama.cpp@8337e4cd3+1888", r"does not fit"),
    ],
)
def test_a_profile_that_cannot_be_is_refused_with_what_to_write(profile: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        Engine.create(profile, model=tiny("dense"))


@pytest.mark.parametrize(
    ("profile", "options", "message"),
    [
        ("ik_llama.cpp@d2da6da05", {"slot_prompt_similarity": -3}, "a number from 0 to 1"),
        ("ik_llama.cpp@d2da6da05", {"ctx_checkpoints_interval": -7}, "whole number from 0 to"),
        ("ik_llama.cpp@d2da6da05", {"cache_ram": -5}, "whole number from -1 to"),
        ("ik_llama.cpp@d2da6da05", {"chat_template": "x"}, "one of chatml"),
        ("ik_llama.cpp@d2da6da05", {"cache_ram_reuse_n_min": 2}, r"the patch \+1877 adds it"),
        ("ik_llama.cpp@d2da6da05", {"companion": "window"}, "that have it are 8337e4cd3"),
        ("ik_llama.cpp@d2da6da05", {"companion_window": 8}, "that have it are 8337e4cd3"),
        ("mlx-lm@0.32.2", {"provenance": "maybe"}, "true or false"),
        ("mlx-lm@0.32.2", {"tokenizer": True}, "bytes or words"),
        ("mlx-lm@0.32.2", {"tokenizer": 8}, "bytes or words"),
        ("mlx-lm@0.32.2", {"prompt_cache_bytes": "8 gallons"}, "such as '8GB'"),
        ("mlx-lm@0.32.2", {"prompt_cache_bytes": -1}, "a number of bytes"),
        ("mlx-lm@0.32.2", {"prompt_cache_sise": 1}, "did you mean 'prompt_cache_size'"),
        ("mlx-lm@0.30.7", {"prefill_step_size": 1}, r"that have it are 0\.31\.0"),
        ("llama.cpp@b9093", {"spec_type": "none"}, "that have it are b"),
        ("llama.cpp@b11549", {"parallel": 0}, "-1 for the automatic four"),
        ("llama.cpp@b11549", {"slot_prompt_similarity": float("nan")}, "a number from 0 to 1"),
        ("llama.cpp@b11549", {"ctx-size": 4096}, "did you mean 'ctx_size'"),
        ("llama.cpp@b11549", {"cache_ram": "8GB"}, r"whole number from -1 to \d+ \(MiB\)"),
    ],
)
def test_one_reader_refuses_what_an_option_cannot_be(
    profile: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        Engine.create(profile, model=tiny("dense"), options=options)


@pytest.mark.parametrize(
    ("size", "read"),
    [(8_000_000_000, 8 * 10**9), ("8GB", 8 * 10**9), ("1.5 m", 1_500_000), ("700", 700)],
)
def test_sizes_may_be_written_with_upstreams_units(size: object, read: int) -> None:
    engine = {"name": "mlx-lm", "profiles": ["0.32.2"], "options": {"prompt_cache_bytes": size}}
    run_scenario(STORY | {"engine": engine}, profile="mlx-lm@0.32.2", arithmetic="ring")
    options = FAMILIES["mlx-lm"].read(Profile("mlx-lm", "0.32.2"), {"prompt_cache_bytes": size})

    assert read == options.prompt_cache_bytes


@pytest.mark.parametrize("name", ["tokenizer", "provenance", "element_bytes"])
def test_a_scenario_cannot_set_what_programs_hand_in(name: str) -> None:
    engine = {"name": "mlx-lm", "profiles": ["0.32.2"], "options": {name: 2}}
    with pytest.raises(ValueError, match=f"has no option {name!r}; there are chat_template"):
        run_scenario(STORY | {"engine": engine}, profile="mlx-lm@0.32.2")


def test_defaults_are_those_of_the_release() -> None:
    step = LLAMA_CPP.option("checkpoint_min_step")

    assert [256, 8192] == [LLAMA_CPP.default(step, each) for each in ("b9538", "b11549")]
    assert 8192 == LLAMA_CPP.read(Profile("llama.cpp", "b11549"), {}).checkpoint_min_step


def everything(family: Family[Any, Any]) -> list[str]:
    options = [*family.declared, *family.fields]
    named = [each for option in options for each in (option.since, option.until, *option.later)]
    named += [each for option in options for each in option.arrived.values()]
    named += [fit for patch in family.patches for fit in (*patch.fits, patch.landed)]
    return [each for each in named if each]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_family_speaks_of_its_own_releases_only(family: Family[Any, Any]) -> None:
    names = [*family.names(), *(alias for release in family.releases for alias in release.aliases)]

    assert len(set(names)) == len(names)
    assert set(everything(family)) <= set(family.names())
    assert set() == {option.patch for option in family.declared} - {
        "",
        *(patch.name for patch in family.patches),
    }
    assert set(family.kin) <= set(FAMILIES)
    for option in family.table():
        assert option.about, option.name
        assert option.kind == "any" or option.read(option.default) == option.default


@pytest.mark.thorough
def test_tables_of_releases_and_options_load_no_engine() -> None:
    light = {"family.py", "history.py", "releases.py", "options.py", "rules.py"}
    for path in sorted((PACKAGE / "engines").rglob("*.py")):
        if path.name in light or path.parent.name == "releases":
            names = imported_names(path)
            assert "numpy" not in names, path
            assert "cachesim.engines.base.Engine" not in names, path


def test_every_engine_can_be_opened_at_every_release() -> None:
    for family in FAMILIES.values():
        for release in family.names():
            server = Engine.create(Profile(family.name, release), model=tiny("dense"))
            assert str(server.profile) == f"{family.name}@{release}"
            assert isinstance(family.release(release), Release)
