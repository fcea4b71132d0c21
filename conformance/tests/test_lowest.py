"""The lowest versions that are tested are those that the package allows."""

import tomllib

from conformance.lowest import ROOT, TOUCHING, WITHOUT, lowest, wanted


def test_a_lower_bound_becomes_the_version_that_is_installed() -> None:
    assert ("numpy==1.26", "pytest-xdist==3.6.1") == lowest(["numpy>=1.26", "pytest-xdist>=3.6.1"])


def test_every_dependency_is_installed_at_one_version() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert [1] * len(wanted(settings)) == [each.count("==") for each in wanted(settings)]


def test_every_dependency_has_tests_that_touch_it() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = {each.partition("==")[0] for each in wanted(settings)}

    assert names - WITHOUT == TOUCHING.keys()
    assert [] == [
        path for paths in TOUCHING.values() for path in paths if not (ROOT / path).exists()
    ]
