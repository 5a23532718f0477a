"""Which changes an upgrade lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.config.upgrade import Upgrade, list_changes


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def changes_of(text: str, name: str = "old.yaml") -> Upgrade:
    """List the changes of a text as a file of the working directory."""
    Path(name).write_text(text)
    return list_changes(Path(name))


def keys_of(text: str) -> list[str]:
    """List today's keys of a text."""
    return [key for change in changes_of(text).changes for key in change.today]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "pytorch_lightning.callbacks.XLAStatsMonitor",
            "pytorch_lightning.callbacks.DeviceStatsMonitor",
        ),
        (
            "pytorch_lightning.callbacks.progress.ProgressBar",
            "pytorch_lightning.callbacks.TQDMProgressBar",
        ),
        (
            "lightning.pytorch.callbacks.gpu_stats_monitor.GPUStatsMonitor",
            "pytorch_lightning.callbacks.DeviceStatsMonitor",
        ),
        ("GPUStatsMonitor", "DeviceStatsMonitor"),
        ("lightning.pytorch.callbacks.Timer", None),
        ("my.callbacks.GPUStatsMonitor", None),
        ("pytorch_lightning.callbacks.Timer", None),
    ],
)
@pytest.mark.parametrize("form", ["[{}]", "{}", "{{class_path: {}}}", "[{{class_path: {}}}]"])
def test_a_class_gets_its_path_of_today(form: str, old: str, new: str | None) -> None:
    keys = keys_of(f"trainer: {{callbacks: {form.format(old)}}}\n")

    assert [key.partition(": ")[2] for key in keys] == ([new] if new else [])


def test_the_name_of_a_strategy_in_a_list_of_plugins_becomes_the_strategy() -> None:
    assert keys_of("trainer: {plugins: [deepspeed]}\n") == ["trainer.strategy: deepspeed"]


def test_num_processes_of_one_says_nothing_over_gpus_of_a_lower_layer() -> None:
    Path("base.yaml").write_text("trainer:\n  gpus: 2\n")
    found = changes_of("extends: base\ntrainer:\n  num_processes: 1\n  max_epochs: 3\n")

    assert [(change.was, change.today) for change in found.changes] == [
        ("trainer.num_processes: 1", ())
    ]
    assert found.extended == (Path("base.yaml"),)


@pytest.mark.parametrize(
    ("trainer", "block", "keys"),
    [
        ("{gpus: 2}", "{num_processes: 1}", []),
        ("{gpus: 2, accelerator: ddp}", "{gpus: 0}", ["accelerator: cpu", "devices: auto"]),
        ("{gpus: 2}", "{accelerator: ddp}", ["strategy: ddp"]),
        ("{gpus: 2}", "{strategy: horovod}", []),
        (
            "{tpu_cores: 8}",
            "{num_nodes: null, precision: bf16}",
            ["num_nodes: 1", "precision: bf16-mixed"],
        ),
        (
            "{accelerator: gpu, devices: 2}",
            "{num_processes: 1}",
            ["accelerator: cpu", "devices: 1"],
        ),
    ],
)
def test_the_block_of_a_command_counts_as_what_it_is_merged_over(
    trainer: str, block: str, keys: list[str]
) -> None:
    found = keys_of(f"trainer: {trainer}\nfit:\n  trainer: {block}\n")

    assert [key for key in found if key.startswith("fit.")] == [
        f"fit.trainer.{key}" for key in keys
    ]


def test_an_alias_has_the_place_of_its_anchor() -> None:
    found = changes_of("fit: {trainer: &shared {gpus: 1}}\ntest: {trainer: *shared}\n")

    assert [(change.was, change.origin.line) for change in found.changes] == [
        ("fit.trainer.gpus: 1", 1),
        ("test.trainer.gpus: 1", 1),
    ]


def test_an_empty_file_needs_no_upgrade() -> None:
    assert not changes_of("# nothing yet\n").is_needed
    assert not changes_of("").is_needed
