"""The `launch` block: what is accepted, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonargparse import ArgumentParser

from lightkit.config import Flag, Problems, resolve
from lightkit.config.validation import check_sections
from lightkit.errors import ConfigError
from lightkit.hardware.cores import CHOSEN_THREADS
from lightkit.launch.plan import LaunchSettings, check_engine, plan_launch, read_settings


def settings(folder: Path, block: str) -> LaunchSettings:
    file = folder / "job.yaml"
    file.write_text(f"launch: {block}\n", encoding="utf-8")
    problems = Problems()
    resolved = check_sections(resolve([file], environ={}), problems)
    problems.raise_any()
    return read_settings(resolved)


def test_no_block_is_one_process(tmp_path: Path) -> None:
    assert read_settings(resolve([], environ={})) == LaunchSettings()
    assert settings(tmp_path, "null") == LaunchSettings()


def test_hosts_and_nodes_are_numbers(tmp_path: Path) -> None:
    assert settings(tmp_path, '{hosts: "a:4,b:2"}').slots == {"a": 4, "b": 2}
    assert settings(tmp_path, '{nodes: "1:4"}').num_nodes == (1, 4)
    assert settings(tmp_path, "{nodes: 3}").num_nodes == (3, 3)


def test_what_yaml_takes_for_a_number_to_the_base_of_60_is_text(tmp_path: Path) -> None:
    found = settings(
        tmp_path, "{nodes: 1:4, slurm: {time: 2:00:00, account: 0123, mem: 8G, exclusive: true}}"
    )
    assert found.num_nodes == (1, 4)
    assert found.slurm == {"time": "2:00:00", "account": "0123", "mem": "8G", "exclusive": True}


def test_a_saved_config_has_the_text_that_was_written(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    written = (
        "{nodes: 1:4, hosts: 10:4, rendezvous: 12:30, processes: 2,"
        " slurm: {time: 2:00:00, account: 0123, cpus: 8}}"
    )
    file.write_text(f"launch: {written}\n", encoding="utf-8")
    values = resolve([file], environ={}).lightning_values
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(LaunchSettings, "launch")
    found = parser.parse_object(values).launch
    assert (found.nodes, found.hosts, found.rendezvous) == ("1:4", "10:4", "12:30")
    assert found.processes == 2
    assert found.slurm == {"time": "2:00:00", "account": "0123", "cpus": 8}


def test_a_flags_text_is_a_number_where_it_looks_so() -> None:
    words = {
        "processes": "4",
        "all_ranks": "true",
        "slurm.time": "2:00:00",
        "slurm.exclusive": "true",
    }
    flags = [
        Flag(f"launch.{key}", value, f"--launch.{key}={value}") for key, value in words.items()
    ]
    found = read_settings(resolve([], flags=flags, environ={}))
    assert (found.processes, found.all_ranks) == (4, True)
    assert found.slurm == {"time": "2:00:00", "exclusive": "true"}


WRONG = {
    "a key that is not there": (
        "{procesess: 2}",
        "launch.procesess: there is no such argument; did you mean 'processes'?",
    ),
    "a key with a dot": ("{processes.x: 2}", "launch.processes.x: there is no such argument"),
    "no key that is near": ("{foo: 3}", "launch.foo: there is no such argument; there are engine,"),
    "no mapping": ("2", "launch: expected a mapping"),
    "no nodes": (
        "{nodes: 0}",
        "launch.nodes: expected a number above 0 or the fewest and the most machines, such as 1:4,"
        " got 0",
    ),
    "too many threads for a float": (
        f"{{threads: {10**400}}}",
        "launch.threads: expected an integer or null, of a size below",
    ),
    "a controller that is not there": (
        "{controller: glo}",
        "launch.controller: expected 'gloo' or 'mpi', got 'glo'; did you mean 'gloo'?",
    ),
    "an engine that is not there": (
        "{engine: mpirun}",
        "launch.engine: expected 'local', 'horovod'",
    ),
    "no processes": ("{processes: 0}", "launch.processes: expected a number of processes"),
    "a truth for a number": (
        "{processes: true}",
        "launch.processes: expected an integer or null, got true",
    ),
    "hosts without slots": ("{hosts: 'a,b'}", "launch.hosts: expected each host with its"),
    "more least than most": ("{nodes: '4:1'}", "launch.nodes: expected the fewest machines, then"),
    "a rendezvous without a port": (
        "{rendezvous: somewhere}",
        "launch.rendezvous: expected HOST:PORT",
    ),
    "no time": ("{timeout_s: 0}", "launch.timeout_s: expected seconds"),
    "a key of another engine": (
        "{engine: torchrun, max_failures: 2}",
        "launch.max_failures: is for the engine ray only, but launch.engine is 'torchrun'",
    ),
}


@pytest.mark.parametrize(("block", "says"), WRONG.values(), ids=WRONG)
def test_an_error_is_reported_with_its_place(tmp_path: Path, block: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, block)
    assert says in str(caught.value)
    assert "job.yaml:1:" in str(caught.value)


WITHOUT_ENGINE = {
    "restarts": ("max_restarts: 3", "launch.max_restarts: is for the engine torchrun only"),
    "failures": ("max_failures: 3", "launch.max_failures: is for the engine ray only"),
    "nodes": ("nodes: 2", "launch.nodes: is for the engine torchrun or slurm only"),
    "a rendezvous": ("rendezvous: 'a:1'", "launch.rendezvous: is for the engine torchrun only"),
    "a master": ("master: 'local[2]'", "launch.master: is for the engine spark or ray only"),
    "a controller": ("controller: mpi", "launch.controller: is for the engine horovod only"),
    "an interface": (
        "network_interface: eth0",
        "launch.network_interface: is for the engine horovod or torchrun or",
    ),
    "options of sbatch": ("slurm: {time: 1}", "launch.slurm: is for the engine slurm only"),
}


def checked(
    folder: Path,
    text: str,
    *above: str,
    strategy: str | None = None,
    flags: dict[str, str] | None = None,
) -> None:
    """Check a config of one file, further ones above it, and flags."""
    files = [folder / f"{number}.yaml" for number in range(len(above) + 1)]
    for file, content in zip(files, (text, *above), strict=True):
        file.write_text(content, encoding="utf-8")
    words = [Flag(key, value, f"--{key}={value}") for key, value in (flags or {}).items()]
    resolved = resolve(files, flags=words, environ={})
    check_engine(read_settings(resolved), resolved, strategy=strategy)


@pytest.mark.parametrize(("key", "says"), WITHOUT_ENGINE.values(), ids=WITHOUT_ENGINE)
def test_a_key_of_an_engine_that_is_not_chosen_is_refused(
    tmp_path: Path, key: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(tmp_path, f"launch: {{processes: 2, {key}}}\n")
    assert says in str(caught.value)
    assert "but launch.engine is not said, which comes to 'local'" in str(caught.value)
    assert "0.yaml:1:" in str(caught.value)


def test_the_engine_that_is_chosen_has_its_keys(tmp_path: Path) -> None:
    checked(
        tmp_path,
        "launch: {processes: 2, controller: mpi, network_interface: eth0}",
        strategy="horovod",
    )
    checked(tmp_path, "launch: {hosts: 'a:1,b:1', controller: mpi}", strategy="horovod")
    # as a saved config has them
    checked(tmp_path, "launch: {nodes: 1, max_restarts: 0, controller: gloo}")


def test_what_a_lower_layer_says_for_another_engine_counts_no_more(tmp_path: Path) -> None:
    lower = "launch: {engine: torchrun, max_restarts: 3}\n"
    checked(tmp_path, lower, "launch: {engine: ray, processes: 2}\n")
    checked(tmp_path, lower, flags={"launch.engine": "local"})
    with pytest.raises(
        ConfigError,
        match=r"launch\.max_failures: is for the engine ray only, but launch\.engine is 'tor",
    ):
        checked(tmp_path, lower, "launch: {max_failures: 3}\n")
    with pytest.raises(
        ConfigError, match=r"launch\.max_failures: .*(.|\n)*--launch\.max_failures=3"
    ):
        checked(tmp_path, lower, flags={"launch.max_failures": "3"})


def test_several_machines_need_an_engine_that_makes_them_one_run(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"trainer\.num_nodes: 2 machines .* set launch\.engine: torchrun"
    ):
        checked(tmp_path, "trainer: {num_nodes: 2}\n")
    with pytest.raises(ConfigError, match=r"trainer\.num_nodes: 2 machines"):
        checked(tmp_path, "", flags={"trainer.num_nodes": "2"})
    checked(tmp_path, "trainer: {num_nodes: 1}\n")
    checked(tmp_path, "trainer: {num_nodes: 2}\nlaunch: {engine: slurm}\n")


def test_the_trainers_number_of_machines_must_be_that_of_the_launch(tmp_path: Path) -> None:
    launch = "launch: {engine: torchrun, rendezvous: 'a:1', nodes: %s}\n"
    checked(tmp_path, "trainer: {num_nodes: 3}\n" + launch % "'1:4'")
    with pytest.raises(ConfigError, match=r"trainer\.num_nodes: 3 contradicts launch\.nodes: 2"):
        checked(tmp_path, "trainer: {num_nodes: 3}\n" + launch % 2)
    checked(tmp_path, "trainer: {num_nodes: 3}\n", launch % 2)


CLUSTERS = {
    "spark://far:7077": ("spark", 8, 1),
    "yarn": ("spark", 8, 1),
    "local[4]": ("spark", 4, 2),
    "local-cluster[2,1,1024]": ("spark", 2, 4),
    "auto": ("ray", 2, 1),
    None: ("ray", 2, 4),
}


@pytest.mark.parametrize(("master", "expected"), CLUSTERS.items(), ids=map(str, CLUSTERS))
def test_ranks_share_the_cores_of_this_machine_only(
    monkeypatch: pytest.MonkeyPatch, master: str | None, expected: tuple[Any, int, int]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    engine, processes, threads = expected
    asked = LaunchSettings(engine=engine, processes=processes, master=master)
    plan = plan_launch(asked, strategy="ddp", processes=None)
    assert plan is not None
    assert plan.environment(8, {})["OMP_NUM_THREADS"] == str(threads)
    assert plan.environment(8, {})[CHOSEN_THREADS] == str(threads)
    assert not {"OMP_NUM_THREADS", CHOSEN_THREADS} & {
        *plan.environment(8, {"OMP_NUM_THREADS": "5"})
    }


def test_ranks_on_sparks_driver_share_its_cores() -> None:
    asked = LaunchSettings(engine="spark", processes=-4, master="spark://far:7077")
    plan = plan_launch(asked, strategy="ddp", processes=None)
    assert plan is not None
    assert plan.threads(8) == 2
