"""Mistakes that only an import shows."""

from __future__ import annotations

import pytest

from tests.cli.conftest import House


def test_a_config_with_an_error_is_not_printed(house: House) -> None:
    house.write("wrong.yaml", "trainer: {max_epoch: 3}\n")
    done = house("fit", "-c", "small.yaml", "-c", "wrong.yaml", "--print_config")
    assert (done.code, done.out) == (2, "")
    assert "trainer.max_epoch" in done.err
    assert "model" in house.resolved("-c", "small.yaml")


def test_a_check_prints_no_config(house: House) -> None:
    assert house("check", "-c", "small.yaml", "--print_config").out.startswith("no mistakes found")


@pytest.mark.parametrize("section", ["run", "trainer"])
def test_a_number_in_the_place_of_a_section_is_an_error(house: House, section: str) -> None:
    done = house("fit", "-c", "small.yaml", f"{section}=3")
    assert done.code == 2
    assert f"{section}: expected a mapping" in done.err


def test_text_that_is_neither_class_nor_file_is_repeated_in_the_error(house: House) -> None:
    done = house("check", "-c", "small.yaml", "--model=my_models/net.Net")
    assert done.code == 2
    assert "Unexpected import path format: my_models/net.Net" in done.err


def test_a_run_root_that_no_layer_sets_is_reported_without_a_place(house: House) -> None:
    house.write("quiet.yaml", "run: {report: false}\n")
    house.write("runs", "a file")
    done = house("check", "-c", "small.yaml", "-c", "quiet.yaml")
    assert done.code == 2
    assert "run.root: cannot write runs: Not a directory" in done.err
    assert "quiet.yaml" not in done.err
    named = house("check", "-c", "small.yaml", "-c", "quiet.yaml", "--run.root=runs")
    assert "--> --run.root=runs" in named.err
