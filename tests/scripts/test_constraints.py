"""constraints.txt has a version a package, separate by Python version only where they differ."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "constraints.py"
_spec = importlib.util.spec_from_file_location("constraints", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
constraints = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(constraints)


@pytest.mark.parametrize(
    ("versions", "lines"),
    [
        ({"3.10": "1", "3.11": "1"}, ["p==1"]),
        ({"3.10": None, "3.11": "1"}, ["p==1"]),
        (
            {"3.10": "1", "3.11": "2"},
            ['p==1; python_version < "3.11"', 'p==2; python_version >= "3.11"'],
        ),
        (
            {"3.10": "1", "3.11": "2", "3.12": "3"},
            [
                'p==1; python_version < "3.11"',
                'p==2; python_version >= "3.11" and python_version < "3.12"',
                'p==3; python_version >= "3.12"',
            ],
        ),
    ],
    ids=["same", "not_needed_everywhere", "two", "three"],
)
def test_a_version_names_its_pythons_where_they_differ(
    versions: dict[str, str | None], lines: list[str]
) -> None:
    assert constraints.lines_for("p", versions) == lines


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-tpu.txt"])
def test_constraints_name_packages_and_versions_only(name: str) -> None:
    lines = (SCRIPT.parent.parent / name).read_text().splitlines()
    assert all("==" in line and "/" not in line for line in lines if not line.startswith("#"))


def lines_of(name: str) -> set[str]:
    return {
        line
        for line in (SCRIPT.parent.parent / name).read_text().splitlines()
        if not line.startswith("#")
    }


def test_tpus_and_petastorm_have_the_other_constraints_but_for_what_they_need() -> None:
    own = {
        line.partition("==")[0]
        for line in lines_of("constraints-tpu.txt") - lines_of("constraints.txt")
    }
    with_xla = {
        "torch",
        "torch-xla",
        "torchvision",
        "immutabledict",
        "libtpu",
        "prometheus-client",
        "tpu-info",
    }
    with_petastorm = {
        "petastorm",
        "dill",
        "diskcache",
        "future",
        "pyarrow",
        "numpy",
        "pandas",
        "setuptools",
    }
    held_back_by_numpy = {"contourpy", "scipy"}
    assert own == with_xla | with_petastorm | held_back_by_numpy


@pytest.mark.parametrize(
    "package", ["contourpy", "numpy", "pandas", "pyarrow", "scipy", "setuptools"]
)
def test_what_petastorm_holds_back_is_as_everywhere_from_python_3_13_on(package: str) -> None:
    usual, tpu = (
        [line for line in sorted(lines_of(name)) if line.startswith(f"{package}==")]
        for name in ("constraints.txt", "constraints-tpu.txt")
    )
    newest = [line.partition(";")[0] for line in tpu if line.endswith('python_version >= "3.13"')]
    assert newest == [usual[-1].partition(";")[0]]


def test_petastorm_has_what_it_works_with() -> None:
    held = {
        line.partition("; ")[0]: line.partition("; ")[2] for line in lines_of("constraints-tpu.txt")
    }
    assert held["pyarrow==14.0.2"] == held["numpy==1.26.4"] == 'python_version < "3.13"'
    assert held["petastorm==0.13.1"] == ""
