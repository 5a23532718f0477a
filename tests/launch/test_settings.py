"""The `launch` block: what is accepted, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.config import Flag, resolve
from lightkit.errors import ConfigError
from lightkit.launch import LaunchSettings, read_settings


def settings(folder: Path, block: str) -> LaunchSettings:
    file = folder / "job.yaml"
    file.write_text(f"launch: {block}\n", encoding="utf-8")
    return read_settings(resolve([file], environ={}))


def test_no_block_is_one_process(tmp_path: Path) -> None:
    assert read_settings(resolve([], environ={})) == LaunchSettings()
    assert settings(tmp_path, "null") == LaunchSettings()


def test_hosts_and_nodes_are_numbers(tmp_path: Path) -> None:
    assert settings(tmp_path, '{hosts: "a:4,b:2"}').slots == {"a": 4, "b": 2}
    assert settings(tmp_path, '{nodes: "1:4"}').num_nodes == (1, 4)
    assert settings(tmp_path, "{nodes: 3}").num_nodes == (3, 3)


def test_what_yaml_takes_for_a_number_to_the_base_of_60_is_text(tmp_path: Path) -> None:
    found = settings(tmp_path, "{nodes: 1:4, slurm: {time: 2:00:00, account: 0123, mem: 8G, exclusive: true}}")
    assert found.num_nodes == (1, 4)
    assert found.slurm == {"time": "2:00:00", "account": "0123", "mem": "8G", "exclusive": True}


def test_a_flags_text_is_a_number_where_it_looks_so() -> None:
    words = {"processes": "4", "all_ranks": "true", "slurm.time": "2:00:00", "slurm.exclusive": "true"}
    flags = [Flag(f"launch.{key}", value, f"--launch.{key}={value}") for key, value in words.items()]
    found = read_settings(resolve([], flags=flags, environ={}))
    assert (found.processes, found.all_ranks) == (4, True)
    assert found.slurm == {"time": "2:00:00", "exclusive": True}


WRONG = {
    "a key that is not there": ("{procesess: 2}", "launch.procesess: there is no such key; did you mean 'processes'?"),
    "no mapping": ("2", "launch: expected a mapping"),
    "an engine that is not there": ("{engine: mpirun}", "launch.engine: expected one of local, horovod"),
    "no processes": ("{processes: 0}", "launch.processes: expected a number of processes"),
    "a truth for a number": ("{processes: true}", "launch.processes: expected a number of processes"),
    "hosts without slots": ("{hosts: 'a,b'}", "launch.hosts: expected each host once"),
    "a host twice": ("{hosts: 'a:1,a:2'}", "launch.hosts: expected each host once"),
    "more least than most": ("{nodes: '4:1'}", "launch.nodes: expected a number of machines"),
    "a rendezvous without a port": ("{rendezvous: somewhere}", "launch.rendezvous: expected HOST:PORT"),
    "no time": ("{timeout_s: 0}", "launch.timeout_s: expected seconds"),
    "a key of another engine": (
        "{engine: torchrun, max_failures: 2}",
        "launch.max_failures: is for the engine ray only, but launch.engine is 'torchrun'",
    ),
}


@pytest.mark.parametrize(("block", "says"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, block: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, block)
    assert says in str(caught.value)
    assert "job.yaml:1:" in str(caught.value)
