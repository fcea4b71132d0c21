"""Servers over another engine's caches: the names that people type, and their former profiles."""

import pytest

from cachesim.cli.main import main
from cachesim.engines import FAMILIES, Profile
from cachesim.engines.family import BESIDE_ENGINE, family_of
from cachesim.engines.former import FORMER
from cachesim.errors import ProfileError, ScenarioError
from cachesim.play import run
from cachesim.scenario import full_profile, scenario_of
from cachesim.scenario.labels import rules_of
from tests.fixtures import Capture

SPELLED = {
    "LM Studio": "lm-studio",
    "lmstudio": "lm-studio",
    "mlx-engine": "lm-studio",
    "Ollama": "ollama",
    "vllm-mlx": "vllm-mlx",
    "Rapid-MLX": "rapid-mlx",
    "omlx": "omlx",
    "oMLX": "omlx",
    "KoboldCpp": "koboldcpp",
    "kobold": "koboldcpp",
    "vLLM": "vllm",
    "llama-server": "llama.cpp",
    "llamacpp": "llama.cpp",
    "mlx_lm.server": "mlx-lm",
    "mlx_lm": "mlx-lm",
}
FORMERLY = [f"{at}+{patches}" for at, rows in FORMER.items() for patches in rows]


@pytest.mark.parametrize(("typed", "name"), SPELLED.items())
def test_an_engine_is_found_by_the_name_that_people_type(
    typed: str, name: str, capsys: Capture
) -> None:
    assert 0 == main(["list", typed])
    assert name == capsys.readouterr().out.split("\n")[0]
    assert f"{name}@{FAMILIES[name].names()[-1]}" == str(
        Profile.parse(f"{typed}@{FAMILIES[name].names()[-1]}")
    )


@pytest.mark.parametrize("typed", SPELLED)
def test_a_scenario_names_its_engine_as_people_type_it(typed: str) -> None:
    family = family_of(typed)
    assert family.name == FAMILIES.named(typed)
    assert [] == [name for name in FAMILIES if FAMILIES.named(name) != name]


@pytest.mark.parametrize("former", FORMERLY)
def test_a_former_profile_is_the_servers_of_today(former: str) -> None:
    today = Profile.parse(former)

    assert today.engine != former.partition("@")[0]
    assert FAMILIES[today.engine].rules(today) is not None
    assert today == Profile.parse(str(today))


def test_a_former_patch_of_another_release_is_refused_with_the_one_that_it_fits() -> None:
    with pytest.raises(ProfileError, match=r"it fits llama-cpp-python@0\.3\.36\+ollama"):
        Profile.parse("llama-cpp-python@0.3.23+ollama")


@pytest.mark.parametrize(
    "engine", [name for name, each in FAMILIES.items() if each.evidence != BESIDE_ENGINE]
)
def test_the_evidence_of_an_engines_rules_is_in_its_reports(engine: str, capsys: Capture) -> None:
    family, told = FAMILIES[engine], rules_of(engine)
    profile = f"{engine}@{family.names()[-1]}"

    assert f"rules of {engine}: {family.evidence}" == told
    main(["check", profile, "--model", "dense", "--examples", "1"])
    assert told in capsys.readouterr().out
    assert 0 == main(["list", engine])
    assert f"rules: {family.evidence}" in capsys.readouterr().out
    workload = "llama.cpp-three-requests"
    main(["compare", workload, "--row", profile])
    assert told in " ".join(capsys.readouterr().out.split())


def test_other_engines_reports_do_not_repeat_it() -> None:
    assert "" == rules_of("llama.cpp")


def test_a_scenario_of_before_runs_with_the_flags_of_the_engine_below() -> None:
    """`prompt_cache_size` is a flag of mlx-lm's own server alone."""
    engine = {
        "name": "mlx_lm",
        "profiles": ["0.31.3", "0.31.3+rapid-mlx"],
        "options": {"prompt_cache_size": 3, "prefill_step_size": 16},
    }
    steps = [{"prompt": [300, 301, 302], "predict": 1}]
    scenario = scenario_of(
        {"format": 1, "name": "n", "model": {"preset": "dense"}, "engine": engine, "step": steps}
    )

    profiles = [full_profile("mlx-lm", profile) for profile in scenario.engine.profiles]
    played = [run(scenario, profile, arithmetic="ring") for profile in profiles]

    assert ["mlx-lm@0.31.3", "rapid-mlx@0.12.5"] == [each.profile for each in played]
    assert [] == [step.error for each in played for step in each.steps if step.error]


@pytest.mark.parametrize("former", ["koboldcpp", "ollama"])
def test_a_flag_that_only_the_engine_below_has_is_refused_and_its_default_is_not(
    former: str,
) -> None:
    def scenario(**flags: object) -> dict[str, object]:
        engine = {
            "name": "llama-cpp-python",
            "profiles": ["0.3.36", f"0.3.36+{former}"],
            "options": {"n_ctx": 512, **flags},
        }
        step = [{"name": "a", "prompt": "S", "predict": 1}]
        model = {"preset": "dense"}
        whole = {"format": 1, "name": "x", "model": model, "engine": engine, "step": step}
        return {**whole, "spans": {"S": 20}}

    for default in ({"logits_all": False}, {"embedding": False}, {"cache": "none"}):
        assert scenario_of(scenario(**default)).engine.options.keys() == {"n_ctx", *default}
    for flag, value in {"cache": "ram", "logits_all": True, "draft_model": "prompt-lookup"}.items():
        with pytest.raises(ScenarioError, match=f"has no option '{flag}'"):
            scenario_of(scenario(**{flag: value}))


@pytest.mark.parametrize(
    ("former", "today"),
    [
        ("vllm@0.33.0+43569+no-39273", "vllm@0.33.0+43569-39273"),
        ("vllm@0.28.0+no-46281", "vllm@0.28.0-states-without-margin"),
        ("vllm@0.27.1+no-55601", "vllm@0.27.1+no-55601"),  # older than the defect
        ("vllm@0.32.0+no-55601", "vllm@0.32.0-55601"),
        ("sglang@0.5.23+no-31643+no-27291", "sglang@0.5.23-31643-27291"),
    ],
)
def test_a_former_patch_is_a_merged_change_taken_back(former: str, today: str) -> None:
    profile = Profile.parse(former)

    assert today == str(profile)
    assert FAMILIES[profile.engine].rules(profile) is not None


@pytest.mark.parametrize("engine", [name for name, each in FAMILIES.items() if not each.kin])
def test_no_proposal_says_the_same_as_a_merged_change_taken_back(engine: str) -> None:
    family, twice = FAMILIES[engine], []
    merged = [patch for patch in family.patches if patch.back]
    for release in family.names():
        plain = family.rules(Profile(engine, release))
        proposed = [patch.name for patch in family.patches if release in patch.fits]
        laid = {
            name: rules
            for name in proposed
            if not family.patch(name).landed
            and (rules := family.rules(Profile(engine, release, (name,)))) != plain
        }
        back = [each.name for each in merged if laid and release in family.since(each.landed)]
        for name in back:
            rules = _rules(Profile(engine, release, (f"-{name}",)))
            twice += [(release, patch, name) for patch, same in laid.items() if same == rules]

    assert [] == twice


def _rules(profile: Profile) -> object:
    """The rules of a profile; none where a change cannot be taken back alone."""
    try:
        return FAMILIES[profile.engine].rules(profile)
    except ProfileError:
        return None
