"""`lightkit upgrade` lists the keys of a Lightning 1.x config in today's words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.contract.command_table import Command, Ended, run_commands
from tests.contract.conftest import Once

# fmt: off
ARGUMENTS = {
    "gpus: 2": ["trainer.accelerator: gpu", "trainer.devices: 2"],
    'gpus: "2"': ["trainer.accelerator: gpu", "trainer.devices: 2"],
    "gpus: [0, 3]": ["trainer.accelerator: gpu", "trainer.devices: [0, 3]"],
    "gpus: 0,3": ["trainer.accelerator: gpu", "trainer.devices: [0, 3]"],
    "gpus: -1": ["trainer.accelerator: gpu", "trainer.devices: -1"],
    "gpus: 0": ["trainer.accelerator: cpu", "trainer.devices: auto"],
    "gpus: null": ["trainer.accelerator: cpu", "trainer.devices: auto"],
    "tpu_cores: 8": ["trainer.accelerator: tpu", "trainer.devices: 8"],
    "num_processes: 2": ["trainer.accelerator: cpu", "trainer.devices: 2", "trainer.strategy: ddp"],
    "strategy: tpu_spawn": ["trainer.strategy: xla", "trainer.accelerator: tpu"],
    "strategy: fsdp_native": ["trainer.strategy: fsdp"],
    "strategy: null": ["trainer.strategy: auto"],
    "accelerator: ddp": ["trainer.strategy: ddp"],
    "accelerator: ddp_cpu": ["trainer.accelerator: cpu", "trainer.strategy: ddp"],
    "accelerator: horovod": ["trainer.strategy: horovod"],
    "distributed_backend: ddp_spawn": ["trainer.strategy: ddp_spawn"],
    "plugins: deepspeed_stage_2": ["trainer.strategy: deepspeed_stage_2"],
    "precision: 16": ["trainer.precision: 16-mixed"],
    'precision: "bf16"': ["trainer.precision: bf16-mixed"],
    "checkpoint_callback: false": ["trainer.enable_checkpointing: false"],
    "replace_sampler_ddp: ${sampler}": ["trainer.use_distributed_sampler: ${sampler}"],
    "progress_bar_refresh_rate: 0": ["trainer.enable_progress_bar: false"],
    "weights_summary: top": ["trainer.enable_model_summary: true"],
    "weights_summary: null": ["trainer.enable_model_summary: false"],
    "reload_dataloaders_every_epoch: true": ["trainer.reload_dataloaders_every_n_epochs: 1"],
    "terminate_on_nan: true": ["trainer.detect_anomaly: true"],
    "max_steps: null": ["trainer.max_steps: -1"],
    "profiler: true": ["trainer.profiler: simple"],
    "callbacks: [GPUStatsMonitor]": ["trainer.callbacks.0: DeviceStatsMonitor"],
    "callbacks: [{class_path: ModelCheckpoint, init_args: {period: 5}}]":
        ["trainer.callbacks.0.init_args.every_n_epochs: 5"],
}
UNCHANGED = ["precision: 32", "callbacks: [my.callbacks.GPUStatsMonitor]"]
A_STRATEGY_AMONG_THE_PLUGINS = """\
trainer:
  plugins:
    - class_path: pytorch_lightning.plugins.DDPPlugin
      init_args: {find_unused_parameters: false}
"""
WITHOUT_EFFECT = [
    "amp_backend: native", "amp_level: null", "auto_lr_find: false", "auto_scale_batch_size: false",
    "ipus: null", "auto_select_gpus: false", "automatic_optimization: true",
    "enable_pl_optimizer: false", "hpus: 0", "flush_logs_every_n_steps: 100",
    "log_gpu_memory: null",
    "move_metrics_to_cpu: false",
    "process_position: 0",
    "multiple_trainloader_mode: max_size_cycle", "prepare_data_per_node: true",
    "progress_bar_refresh_rate: 1", "resume_from_checkpoint: null", "stochastic_weight_avg: false",
    "track_grad_norm: -1", "terminate_on_nan: null", "truncated_bptt_steps: null",
    "weights_save_path: null",
    "accumulate_grad_batches: null",
    "profiler: false",
]
BESIDE = {
    'resume_from_checkpoint: a.ckpt': [
        'fit.ckpt_path: a.ckpt',
    ],
    'logger: true': [
        'logger.tensorboard: {}',
    ],
    'log_gpu_memory: all': [
        'callbacks.device_stats: {}',
    ],
    "weights_save_path: 'my weights'": [
        'callbacks.checkpoint.init_args.dirpath: my weights',
    ],
    'accumulate_grad_batches: {4: 2}': [
        'callbacks.gradient_accumulation.init_args.scheduling: {"4": 2}',
    ],
    'progress_bar_refresh_rate: 5': [
        'callbacks.progress_bar.class_path: pytorch_lightning.callbacks.TQDMProgressBar',
        'callbacks.progress_bar.init_args.refresh_rate: 5',
    ],
    'weights_summary: full': [
        'trainer.enable_model_summary: true',
        'callbacks.model_summary.class_path: pytorch_lightning.callbacks.ModelSummary',
        'callbacks.model_summary.init_args.max_depth: -1',
    ],
}
REFUSED = {
    "ipus: 4": "IPUs",
    "strategy: dp": "dp.*use ddp",
    "accelerator: ddp2": "ddp2",
    "plugins: ddp_sharded": "FairScale",
    "amp_backend: apex": "Apex.*precision: 16-mixed",
    "amp_level: O2": "Apex",
    "auto_lr_find: true": "callback",
    "auto_select_gpus: true": "GPUs",
    "track_grad_norm: 2": "grad_norm",
    "prepare_data_per_node: false": "data",
    "stochastic_weight_avg: true": "callback",
    "truncated_bptt_steps: 5": "split the sequence",
    "multiple_trainloader_mode: min_size": "CombinedLoader",
    "logger: pytorch_lightning.loggers.TestTubeLogger": "TestTubeLogger",
    "gpus: ${oc.env:N}": "value",
    "gpus: 1\n  tpu_cores: 8": "contradicts.*tpu_cores",
    "checkpoint_callback: true\n  enable_checkpointing: false": "contradicts.*enable_checkpointing",
}
# fmt: on
UNDECIDABLE = {
    "a_contradiction_with_the_trainer": (
        "max_epochs: 3\ntrainer:\n  max_epochs: 4\n",
        r"max_epochs.*contradicts",
    ),
    "the_command_tune": ("tune:\n  trainer: {max_epochs: 3}\n", "tune.*dropped"),
}
WHOLE_OLD = """\
%YAML 1.1
---
# ResNet on flowers, Lightning 1.5.
#   python main.py fit --config old.yaml

seed_everything: 42            # as in the paper

trainer: # everything about the machine
    gpus: 2                    # two V100
    accelerator: ddp
    precision: 16
    max_epochs:   90

    # the first half was trained last week
    resume_from_checkpoint: 'runs/half/last.ckpt'   # 45 epochs
    weights_summary: "full"
    flush_logs_every_n_steps: 100   # the disk is slow
    gradient_clip_val: &clip 1e-1
    callbacks:
    -   class_path: pytorch_lightning.callbacks.GPUStatsMonitor
    -   class_path: pytorch_lightning.callbacks.ModelCheckpoint
        init_args:
            monitor: val_acc
            mode: auto
            period: 5          # every fifth
            filepath: ckpts/best
    # - class_path: my.Callback

model:
    class_path: my_models.Net  # ours
    init_args:
        clip: *clip
        optimizer: {lr:  1e-3,   betas: [0.9,
                                         0.999]}
        note: >
            gpus: 2 is how
            it was trained
data:
    class_path: my_data.Flowers
    init_args: {root: "${oc.env:DATA}", workers: 0x4}
fit:
    trainer: {distributed_backend: ddp, num_processes: 1, max_time: null}
"""
WHOLE_CHANGES = """\
old.yaml:9: Lightning 2.0 takes a kind of device and a number
  - trainer.gpus: 2
  + trainer.accelerator: gpu
  + trainer.devices: 2
old.yaml:10: Lightning 1.6 parts the kind of device from the strategy
  - trainer.accelerator: ddp
  + trainer.strategy: ddp
old.yaml:11: Lightning 2.0 says what computes in it
  - trainer.precision: 16
  + trainer.precision: 16-mixed
old.yaml:15: Lightning 2.0 made it an argument of fit
  - trainer.resume_from_checkpoint: runs/half/last.ckpt
  + fit.ckpt_path: runs/half/last.ckpt
old.yaml:16: Lightning 1.7 renamed it; its depth is a callback's argument
  - trainer.weights_summary: full
  + trainer.enable_model_summary: true
  + callbacks.model_summary.class_path: pytorch_lightning.callbacks.ModelSummary
  + callbacks.model_summary.init_args.max_depth: -1
old.yaml:17: Lightning 1.7 dropped it; loggers flush by themselves
  - trainer.flush_logs_every_n_steps: 100
old.yaml:20: Lightning 1.7 replaced it
  - trainer.callbacks.0.class_path: pytorch_lightning.callbacks.GPUStatsMonitor
  + trainer.callbacks.0.class_path: pytorch_lightning.callbacks.DeviceStatsMonitor
old.yaml:24: Lightning 1.3 dropped auto, which went by the metric's name
  - trainer.callbacks.1.init_args.mode: auto
  + trainer.callbacks.1.init_args.mode: max
old.yaml:25: Lightning 1.5 renamed it
  - trainer.callbacks.1.init_args.period: 5
  + trainer.callbacks.1.init_args.every_n_epochs: 5
old.yaml:26: Lightning 1.2 takes dirpath and filename
  - trainer.callbacks.1.init_args.filepath: ckpts/best
  + trainer.callbacks.1.init_args.dirpath: ckpts
  + trainer.callbacks.1.init_args.filename: best
old.yaml:42: Lightning 1.5 renamed it
  - fit.trainer.distributed_backend: ddp
  + fit.trainer.strategy: ddp
old.yaml:42: Lightning 2.0 takes a kind of device and a number
  - fit.trainer.num_processes: 1
"""
RUNS_OLD = """\
trainer:
  gpus: 0
  max_epochs: 1
  checkpoint_callback: true
  log_gpu_memory: all
  max_steps: null
  callbacks:
    - class_path: lightning.pytorch.callbacks.EarlyStopping
      init_args: {monitor: val_acc, mode: auto}
model: lightning.pytorch.demos.boring_classes.BoringModel
"""
RUNS_NEW = """\
trainer:
  accelerator: cpu
  devices: auto
  max_epochs: 1
  enable_checkpointing: true
  max_steps: -1
  callbacks:
    - class_path: lightning.pytorch.callbacks.EarlyStopping
      init_args: {monitor: val_acc, mode: max}
callbacks: {device_stats: {}}
model: lightning.pytorch.demos.boring_classes.BoringModel
"""
"""The same in the words that `upgrade` prints for it."""
AT_THE_TOP = """\
gpus: 2
max_epochs: 10
model: Net
fit:
  min_epochs: 2
"""
AT_THE_TOP_KEYS = [
    "trainer.accelerator: gpu",
    "trainer.devices: 2",
    "trainer.max_epochs: 10",
    "fit.trainer.min_epochs: 2",
]
OLD = "trainer:\n  gpus: 0   # none\n  max_epochs: 3\n"
CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = {file.relative_to(CONFIGS).as_posix(): file for file in sorted(CONFIGS.rglob("*.yaml"))}


def upgrade(text: str, *words: str, **files: str) -> Command:
    """Upgrade a text as `old.yaml`."""
    return Command(["upgrade", "old.yaml", *words], {"old.yaml": text, **files}, is_light=True)


def in_a_trainer(line: str) -> Command:
    """Upgrade one argument of a trainer."""
    return upgrade(f"trainer:\n  {line}\n  max_time: null\n")


WRONG = {
    "no_config": (Command(["upgrade"]), "one config"),
    "two_configs": (upgrade(OLD, "b.yaml"), "b.yaml"),
    "an_option_to_write": (upgrade(OLD, "-o", "new.yaml"), "-o"),
    "a_missing_file": (
        Command(["upgrade", "olt.yaml"], {"old.yaml": OLD}),
        "did you mean 'old.yaml'",
    ),
    "a_folder": (Command(["upgrade", "."]), "folder"),
}
FOREIGN = {
    "gpus_at_the_top": "gpus: 2\n",
    "resume_from_checkpoint": "trainer: {resume_from_checkpoint: a.ckpt}\n",
    "progress_bar_refresh_rate": "trainer: {progress_bar_refresh_rate: 20}\n",
    "class_of_1_x": (
        "trainer: {callbacks: [{class_path: pytorch_lightning.callbacks.GPUStatsMonitor}]}\n"
    ),
    "several": "gpus: 2\ntrainer: {checkpoint_callback: true, max_epoch: 3, amp_level: O2}\n",
}
COMMANDS = {
    **{
        f"foreign {command} {name}": Command(
            [command, "-c", "small.yaml", "-c", "old.yaml"],
            {
                "small.yaml": "model: Regressor\ndata: Temperatures\nrun: {rot: 3}\n",
                "old.yaml": text,
            },
        )
        for name, text in FOREIGN.items()
        for command in ("check", "fit")
    },
    **{f"argument {line}": in_a_trainer(line) for line in ARGUMENTS},
    **{f"gone {line}": in_a_trainer(f"{line}   # a remark") for line in WITHOUT_EFFECT},
    **{
        f"beside {line}": upgrade(f"trainer:\n  max_epochs: 3\n  {line}\n\nmodel: Net\n")
        for line in BESIDE
    },
    **{f"refused {line}": upgrade(f"trainer:\n  {line}\n") for line in REFUSED},
    **{f"undecidable {name}": upgrade(text) for name, (text, _) in UNDECIDABLE.items()},
    **{f"wrong {name}": command for name, (command, _) in WRONG.items()},
    **{
        f"shipped {name}": Command(["upgrade", str(file)], is_light=True)
        for name, file in SHIPPED.items()
    },
    **{f"unchanged {line}": in_a_trainer(line) for line in UNCHANGED},
    "plugins": upgrade(A_STRATEGY_AMONG_THE_PLUGINS),
    "whole": upgrade(WHOLE_OLD),
    "two_refused": upgrade("trainer:\n  gpus: 2\n  ipus: 4\nfit:\n  trainer: {strategy: ddp2}\n"),
    "today": upgrade(RUNS_NEW),
    "printed": upgrade(OLD),
    "extending": upgrade(
        "extends: base\n",
        **{
            "base.yaml": "extends: [lower, today]\n",
            "lower.yaml": "gpus: 2\n",
            "today.yaml": "seed_everything: 1\n",
        },
    ),
    "at_the_top": upgrade(AT_THE_TOP),
    "own_arguments": upgrade(
        "model:\n  class_path: Net\n  init_args: {max_epochs: 3, gpus: 2, precision: 16}\n"
    ),
    "runs_old": upgrade(RUNS_OLD),
}


@pytest.fixture(scope="module")
def upgraded(made_once: Once) -> dict[str, Ended]:
    """How each command ended."""
    return run_commands("upgrade", COMMANDS, made_once)


def list_lines(printed: str, sign: str) -> list[str]:
    """List the lines of a printed table that begin with a sign."""
    return [
        line.removeprefix(f"  {sign} ")
        for line in printed.splitlines()
        if line.startswith(f"  {sign} ")
    ]


@pytest.mark.parametrize("line", ARGUMENTS)
def test_upgrade_names_an_old_argument_in_todays_words(
    line: str, upgraded: dict[str, Ended]
) -> None:
    printed = upgraded[f"argument {line}"].result.ok().out
    assert list_lines(printed, "+") == ARGUMENTS[line]
    assert len(list_lines(printed, "-")) == 1


def test_upgrade_names_a_strategy_among_the_plugins(upgraded: dict[str, Ended]) -> None:
    printed = upgraded["plugins"].result.ok().out
    assert "+ trainer.plugins.0.class_path: pytorch_lightning.strategies.DDPStrategy" in printed
    assert (
        '+ trainer.strategy: {"class_path": "pytorch_lightning.strategies.DDPStrategy",'
        ' "init_args": ' in printed
    )


@pytest.mark.parametrize("line", WITHOUT_EFFECT)
def test_upgrade_lists_an_argument_without_effect_to_be_removed(
    line: str, upgraded: dict[str, Ended]
) -> None:
    printed = upgraded[f"gone {line}"].result.ok().out
    assert [each.partition(":")[0] for each in list_lines(printed, "-")] == [
        f"trainer.{line.partition(':')[0]}"
    ]
    assert list_lines(printed, "+") == []


@pytest.mark.parametrize("line", BESIDE)
def test_upgrade_names_the_section_of_what_is_no_argument_of_the_trainer(
    line: str, upgraded: dict[str, Ended]
) -> None:
    assert list_lines(upgraded[f"beside {line}"].result.ok().out, "+") == BESIDE[line]


@pytest.mark.parametrize("line", REFUSED)
def test_upgrade_refuses_what_has_no_equivalent(line: str, upgraded: dict[str, Ended]) -> None:
    ended = upgraded[f"refused {line}"]
    assert (ended.result.code, ended.result.out) == (2, "")
    assert re.search(rf"error: trainer\.\w+: .*{REFUSED[line]}", ended.result.err), ended.result.err
    assert "--> old.yaml:2:" in ended.result.err


def test_upgrade_refuses_all_at_once_with_their_places(upgraded: dict[str, Ended]) -> None:
    result = upgraded["two_refused"].result
    assert result.code == 2
    assert result.err.count("error: ") == 2
    assert "--> old.yaml:3:9" in result.err
    assert "--> old.yaml:5:23" in result.err
    assert list_lines(result.out, "+") == ["trainer.accelerator: gpu", "trainer.devices: 2"]


@pytest.mark.parametrize("name", UNDECIDABLE)
def test_upgrade_refuses_what_the_file_cannot_decide(name: str, upgraded: dict[str, Ended]) -> None:
    ended = upgraded[f"undecidable {name}"]
    assert (ended.result.code, ended.result.out) == (2, "")
    assert re.search(UNDECIDABLE[name][1], ended.result.err), ended.result.err


def test_upgrade_lists_each_change_with_its_line_and_reason(upgraded: dict[str, Ended]) -> None:
    ended = upgraded["whole"]
    assert ended.result.ok().out == WHOLE_CHANGES
    assert (ended.folder / "old.yaml").read_text(encoding="utf-8") == WHOLE_OLD


def test_upgrade_ends_with_6_where_nothing_is_to_be_changed(upgraded: dict[str, Ended]) -> None:
    for name in ("today", *(f"unchanged {line}" for line in UNCHANGED)):
        result = upgraded[name].result
        assert (result.code, result.out) == (6, "old.yaml: nothing to change\n"), name


@pytest.mark.parametrize("name", SHIPPED)
def test_no_config_of_the_repository_needs_an_upgrade(
    name: str, upgraded: dict[str, Ended]
) -> None:
    result = upgraded[f"shipped {name}"].result
    assert result.code == 6, result.out
    assert result.out.endswith(": nothing to change\n")


def test_upgrade_names_trainer_for_arguments_at_the_top(upgraded: dict[str, Ended]) -> None:
    assert list_lines(upgraded["at_the_top"].result.ok().out, "+") == AT_THE_TOP_KEYS


def test_upgrade_leaves_the_models_own_arguments_alone(upgraded: dict[str, Ended]) -> None:
    assert upgraded["own_arguments"].result.code == 6


def test_upgrade_prints_the_changes_and_leaves_the_file_alone(upgraded: dict[str, Ended]) -> None:
    ended = upgraded["printed"]
    assert (
        ended.result.ok().out == "old.yaml:2: Lightning 2.0 takes a kind of device and a number\n"
        "  - trainer.gpus: 0\n  + trainer.accelerator: cpu\n  + trainer.devices: auto\n"
    )
    assert (ended.folder / "old.yaml").read_text(encoding="utf-8") == OLD


def test_upgrade_names_the_files_below_that_need_it_too(upgraded: dict[str, Ended]) -> None:
    ended = upgraded["extending"].result.ok()
    output = ended.out + ended.err
    assert "lower.yaml needs it too" in output
    assert "today.yaml" not in output


@pytest.mark.parametrize("name", WRONG)
def test_wrong_words_for_upgrade_are_refused(name: str, upgraded: dict[str, Ended]) -> None:
    ended = upgraded[f"wrong {name}"].result
    assert (ended.code, ended.out) == (2, "")
    assert WRONG[name][1] in ended.err


@pytest.mark.parametrize("command", ["check", "fit"])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_config_of_lightning_1_names_upgrade_first_and_once(
    name: str, command: str, upgraded: dict[str, Ended]
) -> None:
    result = upgraded[f"foreign {command} {name}"].result
    assert result.code == 2
    first = result.err.splitlines()[0]
    assert re.search(r"^error: old\.yaml: .*`lightkit upgrade old\.yaml`", first), result.err
    assert result.err.count("lightkit upgrade") == 1
    assert "error: run.rot" in result.err
    assert "Traceback" not in result.err
    assert result.err.count("error: ") == {"several": 6}.get(name, 3), result.err


def test_the_words_of_an_upgrade_run_without_a_notice(
    upgraded: dict[str, Ended], made_once: Once
) -> None:
    keys = list_lines(upgraded["runs_old"].result.ok().out, "+")
    assert sorted(keys) == [
        "callbacks.device_stats: {}",
        "trainer.accelerator: cpu",
        "trainer.callbacks.0.init_args.mode: max",
        "trainer.devices: auto",
        "trainer.enable_checkpointing: true",
        "trainer.max_steps: -1",
    ]
    printed = run_commands(
        "upgraded-printed",
        {"new": Command(["fit", "-c", "new.yaml", "--print_config"], {"new.yaml": RUNS_NEW})},
        made_once,
    )["new"].result
    assert "Lightning 1.x" not in printed.err
    assert printed.yaml["trainer"]["accelerator"] == "cpu"
    assert printed.yaml["trainer"]["max_steps"] == -1
    assert printed.yaml["callbacks"]["device_stats"]["class_path"].endswith("DeviceStatsMonitor")
