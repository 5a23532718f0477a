"""constraints.txt has one version a package, told apart by Python version only where they differ."""

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
        ({"3.10": "1", "3.11": "2"}, ['p==1; python_version < "3.11"', 'p==2; python_version >= "3.11"']),
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
def test_a_version_names_its_pythons_where_they_differ(versions: dict[str, str | None], lines: list[str]) -> None:
    assert constraints.lines_for("p", versions) == lines


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-tpu.txt"])
def test_constraints_name_packages_and_versions_only(name: str) -> None:
    lines = (SCRIPT.parent.parent / name).read_text().splitlines()
    assert all("==" in line and "/" not in line for line in lines if not line.startswith("#"))


def test_tpus_have_the_other_constraints_but_for_torch() -> None:
    usual, tpu = (
        set((SCRIPT.parent.parent / name).read_text().splitlines())
        for name in ("constraints.txt", "constraints-tpu.txt")
    )
    own = {line.partition("==")[0] for line in tpu - usual if not line.startswith("#")}
    with_xla = {"immutabledict", "libtpu", "prometheus-client", "tpu-info"}
    assert own == {"torch", "torch-xla", "torchvision"} | with_xla
