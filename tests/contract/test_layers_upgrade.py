"""`lightkit upgrade` rewrites configs of Lightning 1.x, and loses nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.contract.command_table import Command, Ended, run_commands
from tests.contract.conftest import Once

# fmt: off
ARGUMENTS = {
    "gpus: 2": "accelerator: gpu\n  devices: 2",
    'gpus: "2"': "accelerator: gpu\n  devices: 2",
    "gpus: [0, 3]": "accelerator: gpu\n  devices: [0, 3]",
    "gpus: 0,3": "accelerator: gpu\n  devices: [0, 3]",
    "gpus: -1": "accelerator: gpu\n  devices: -1",
    "gpus: 0": "accelerator: cpu\n  devices: auto",
    "gpus: null": "accelerator: cpu\n  devices: auto",
    "tpu_cores: 8": "accelerator: tpu\n  devices: 8",
    "num_processes: 2": "accelerator: cpu\n  devices: 2\n  strategy: ddp",
    "strategy: tpu_spawn": "strategy: xla\n  accelerator: tpu",
    "strategy: fsdp_native": "strategy: fsdp",
    "strategy: null": "strategy: auto",
    "accelerator: ddp": "strategy: ddp",
    "accelerator: ddp_cpu": "accelerator: cpu\n  strategy: ddp",
    "accelerator: horovod": "strategy: horovod",
    "distributed_backend: ddp_spawn": "strategy: ddp_spawn",
    "plugins: deepspeed_stage_2": "strategy: deepspeed_stage_2",
    "precision: 16": "precision: 16-mixed",
    'precision: "bf16"': "precision: bf16-mixed",
    "precision: 32": "precision: 32",
    "checkpoint_callback: false": "enable_checkpointing: false",
    "replace_sampler_ddp: ${sampler}": "use_distributed_sampler: ${sampler}",
    "progress_bar_refresh_rate: 0": "enable_progress_bar: false",
    "weights_summary: top": "enable_model_summary: true",
    "weights_summary: null": "enable_model_summary: false",
    "reload_dataloaders_every_epoch: true": "reload_dataloaders_every_n_epochs: 1",
    "terminate_on_nan: true": "detect_anomaly: true",
    "max_steps: null": "max_steps: -1",
    "profiler: true": "profiler: simple",
    "callbacks: [GPUStatsMonitor]": "callbacks: [DeviceStatsMonitor]",
    "callbacks: [my.callbacks.GPUStatsMonitor]": "callbacks: [my.callbacks.GPUStatsMonitor]",
    "callbacks: [{class_path: ModelCheckpoint, init_args: {period: 5}}]":
        "callbacks: [{class_path: ModelCheckpoint, init_args: {every_n_epochs: 5}}]",
    "plugins: [{class_path: pytorch_lightning.plugins.DDPPlugin, init_args: {find_unused_parameters: false}}]":
        "strategy: {class_path: pytorch_lightning.strategies.DDPStrategy, init_args: {find_unused_parameters: false}}",
}
WITHOUT_EFFECT = [
    "amp_backend: native", "amp_level: null", "auto_lr_find: false", "auto_scale_batch_size: false", "ipus: null",
    "auto_select_gpus: false", "automatic_optimization: true", "enable_pl_optimizer: false", "hpus: 0",
    "flush_logs_every_n_steps: 100", "log_gpu_memory: null", "move_metrics_to_cpu: false", "process_position: 0",
    "multiple_trainloader_mode: max_size_cycle", "prepare_data_per_node: true", "progress_bar_refresh_rate: 1",
    "resume_from_checkpoint: null", "stochastic_weight_avg: false", "track_grad_norm: -1", "terminate_on_nan: null",
    "truncated_bptt_steps: null", "weights_save_path: null", "accumulate_grad_batches: null", "profiler: false",
]
BESIDE = {
    "resume_from_checkpoint: a.ckpt": "fit:\n  ckpt_path: a.ckpt\n",
    "logger: true": "logger:\n  tensorboard: {}\n",
    "log_gpu_memory: all": "callbacks:\n  device_stats: {}\n",
    "weights_save_path: 'my weights'": "callbacks:\n  checkpoint:\n    init_args:\n      dirpath: 'my weights'\n",
    "accumulate_grad_batches: {4: 2}":
        "callbacks:\n  gradient_accumulation:\n    init_args:\n      scheduling: {4: 2}\n",
    "progress_bar_refresh_rate: 5":
        "callbacks:\n  progress_bar:\n    class_path: pytorch_lightning.callbacks.TQDMProgressBar\n"
        "    init_args:\n      refresh_rate: 5\n",
    "weights_summary: full":
        "callbacks:\n  model_summary:\n    class_path: pytorch_lightning.callbacks.ModelSummary\n"
        "    init_args:\n      max_depth: -1\n",
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
    "a_key_that_others_refer_to": (
        "trainer:\n  gpus: 2\nmodel: {class_path: Net, init_args: {gpus: '${trainer.gpus}'}}\n",
        r"trainer\.gpus.*refers to it",
    ),
    "an_anchor_that_would_vanish": (
        "trainer:\n  gpus: &n 2\nmodel: {class_path: Net, init_args: {n: *n}}\n",
        "anchor",
    ),
    "a_key_of_a_shared_anchor": ("base: &base {gpus: 1}\ntrainer:\n  <<: *base\n", r"trainer\.gpus.*anchor"),
    "a_contradiction_with_the_trainer": ("max_epochs: 3\ntrainer:\n  max_epochs: 4\n", r"max_epochs.*contradicts"),
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
WHOLE_NEW = """\
%YAML 1.1
---
# ResNet on flowers, Lightning 1.5.
#   python main.py fit --config old.yaml

seed_everything: 42            # as in the paper

trainer: # everything about the machine
    accelerator: gpu           # two V100
    devices: 2
    strategy: ddp
    precision: 16-mixed
    max_epochs: 90

    # the first half was trained last week
    # 45 epochs
    enable_model_summary: true
    # the disk is slow
    gradient_clip_val: &clip 1e-1
    callbacks:
    -   class_path: pytorch_lightning.callbacks.DeviceStatsMonitor
    -   class_path: pytorch_lightning.callbacks.ModelCheckpoint
        init_args:
            monitor: val_acc
            mode: max
            every_n_epochs: 5  # every fifth
            dirpath: ckpts
            filename: best
    # - class_path: my.Callback

callbacks:
    model_summary:
        class_path: pytorch_lightning.callbacks.ModelSummary
        init_args:
            max_depth: -1
model:
    class_path: my_models.Net  # ours
    init_args:
        clip: *clip
        optimizer: {lr: 1e-3, betas: [0.9, 0.999]}
        note: >
            gpus: 2 is how
            it was trained
data:
    class_path: my_data.Flowers
    init_args: {root: "${oc.env:DATA}", workers: 0x4}
fit:
    trainer: {strategy: ddp, max_time: null}
    ckpt_path: 'runs/half/last.ckpt'
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
AT_THE_TOP = """\
# my experiment
gpus: 2
# long enough
max_epochs: 10   # ten
model: Net
fit:
  min_epochs: 2
"""
AT_THE_TOP_NEW = """\
# my experiment
trainer:
  accelerator: gpu
  devices: 2
  # long enough
  max_epochs: 10 # ten
model: Net
fit:
  trainer:
    min_epochs: 2
"""
OLD = "trainer:\n  gpus: 0   # none\n  max_epochs: 3\n"
NEW = "trainer:\n  accelerator: cpu # none\n  devices: auto\n  max_epochs: 3\n"
CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = {file.relative_to(CONFIGS).as_posix(): file for file in sorted(CONFIGS.rglob("*.yaml"))}


def upgrade(text: str, *words: str, **files: str) -> Command:
    """Upgrade a text as `old.yaml`."""
    return Command(["upgrade", "old.yaml", *words], {"old.yaml": text, **files})


def in_a_trainer(line: str) -> Command:
    """Upgrade one argument of a trainer."""
    return upgrade(f"trainer:\n  {line}\n  max_time: null\n")


WRONG = {
    "no_config": (Command(["upgrade"]), "one config"),
    "two_configs": (upgrade(OLD, "b.yaml"), "b.yaml"),
    "no_name_after_o": (upgrade(OLD, "-o"), "-o"),
    "a_misspelt_option": (upgrade(OLD, "--forse"), "did you mean '--force'"),
    "a_missing_file": (Command(["upgrade", "olt.yaml"], {"old.yaml": OLD}), "did you mean 'old.yaml'"),
    "a_folder": (Command(["upgrade", "."]), "folder"),
    "onto_a_folder": (upgrade(OLD, "-o", "."), "folder"),
}
FOREIGN = {
    "gpus_at_the_top": "gpus: 2\n",
    "resume_from_checkpoint": "trainer: {resume_from_checkpoint: a.ckpt}\n",
    "progress_bar_refresh_rate": "trainer: {progress_bar_refresh_rate: 20}\n",
    "class_of_1_x": "trainer: {callbacks: [{class_path: pytorch_lightning.callbacks.GPUStatsMonitor}]}\n",
    "several": "gpus: 2\ntrainer: {checkpoint_callback: true, max_epoch: 3, amp_level: O2}\n",
}
COMMANDS = {
    **{
        f"foreign {command} {name}": Command(
            [command, "-c", "small.yaml", "-c", "old.yaml"],
            {"small.yaml": "model: Regressor\ndata: Temperatures\nrun: {rot: 3}\n", "old.yaml": text},
        )
        for name, text in FOREIGN.items()
        for command in ("check", "fit")
    },
    **{f"argument {line}": in_a_trainer(line) for line in ARGUMENTS},
    **{f"gone {line}": in_a_trainer(f"{line}   # a remark") for line in WITHOUT_EFFECT},
    **{f"beside {line}": upgrade(f"trainer:\n  max_epochs: 3\n  {line}\n\nmodel: Net\n") for line in BESIDE},
    **{f"refused {line}": upgrade(f"trainer:\n  {line}\n", "-o", "new.yaml") for line in REFUSED},
    **{f"undecidable {name}": upgrade(text, "-o", "new.yaml") for name, (text, _) in UNDECIDABLE.items()},
    **{f"wrong {name}": command for name, (command, _) in WRONG.items()},
    **{f"shipped {name}": Command(["upgrade", str(file)]) for name, file in SHIPPED.items()},
    "whole": upgrade(WHOLE_OLD),
    "twice": upgrade(WHOLE_NEW),
    "twice_in_place": upgrade(WHOLE_NEW, "-o", "old.yaml"),
    "two_refused": upgrade("trainer:\n  ipus: 4\nfit:\n  trainer: {strategy: ddp2}\n", "-o", "new.yaml"),
    "printed": upgrade(OLD),
    "in_place": upgrade(OLD, "-o", "old.yaml"),
    "written": upgrade(OLD, "-o", "new.yaml"),
    "onto_another": upgrade(OLD, "-o", "new.yaml", **{"new.yaml": "mine: 1\n"}),
    "forced": upgrade(OLD, "-o", "new.yaml", "--force", **{"new.yaml": "mine: 1\n"}),
    "extending": upgrade(
        "extends: base\n",
        **{"base.yaml": "extends: [lower, today]\n", "lower.yaml": "gpus: 2\n", "today.yaml": "seed_everything: 1\n"},
    ),
    "at_the_top": upgrade(AT_THE_TOP),
    "line_ends": upgrade("\ufefftrainer:\r\n  precision: 16", "-o", "old.yaml"),
    "own_arguments": upgrade("model:\n  class_path: Net\n  init_args: {max_epochs: 3, gpus: 2, precision: 16}\n"),
    "runs_old": upgrade(RUNS_OLD, "-o", "new.yaml"),
}


@pytest.fixture(scope="module")
def upgraded(made_once: Once) -> dict[str, Ended]:
    """How each command ended."""
    return run_commands("upgrade", COMMANDS, made_once)


@pytest.mark.parametrize("line", ARGUMENTS)
def test_upgrade_writes_an_old_argument_in_todays_words(line: str, upgraded: dict[str, Ended]) -> None:
    assert upgraded[f"argument {line}"].result.ok().out == f"trainer:\n  {ARGUMENTS[line]}\n  max_time: null\n"


@pytest.mark.parametrize("line", WITHOUT_EFFECT)
def test_upgrade_removes_what_does_nothing_and_keeps_its_comment(line: str, upgraded: dict[str, Ended]) -> None:
    assert upgraded[f"gone {line}"].result.ok().out == "trainer:\n  # a remark\n  max_time: null\n"


@pytest.mark.parametrize("line", BESIDE)
def test_upgrade_moves_next_to_the_trainer_what_is_no_argument_of_it(line: str, upgraded: dict[str, Ended]) -> None:
    text = upgraded[f"beside {line}"].result.ok().out
    assert yaml.safe_load(text) == {
        **yaml.safe_load(BESIDE[line]),
        "trainer": {"max_epochs": 3, **({"enable_model_summary": True} if line == "weights_summary: full" else {})},
        "model": "Net",
    }
    assert BESIDE[line] in text


@pytest.mark.parametrize("line", REFUSED)
def test_upgrade_refuses_what_has_no_equivalent(line: str, upgraded: dict[str, Ended]) -> None:
    ended = upgraded[f"refused {line}"]
    assert (ended.result.code, ended.result.out) == (2, "")
    assert re.search(rf"error: trainer\.\w+: .*{REFUSED[line]}", ended.result.err), ended.result.err
    assert "--> old.yaml:2:" in ended.result.err
    assert not (ended.folder / "new.yaml").exists()


def test_upgrade_refuses_all_at_once_with_their_places(upgraded: dict[str, Ended]) -> None:
    told = upgraded["two_refused"].result.err
    assert told.count("error: ") == 2
    assert "--> old.yaml:2:9" in told
    assert "--> old.yaml:4:23" in told


@pytest.mark.parametrize("name", UNDECIDABLE)
def test_upgrade_refuses_what_the_file_cannot_decide(name: str, upgraded: dict[str, Ended]) -> None:
    ended = upgraded[f"undecidable {name}"]
    assert (ended.result.code, ended.result.out) == (2, "")
    assert re.search(UNDECIDABLE[name][1], ended.result.err), ended.result.err
    assert not (ended.folder / "new.yaml").exists()


def test_upgrade_keeps_comments_order_and_quotes(upgraded: dict[str, Ended]) -> None:
    assert upgraded["whole"].result.ok().out == WHOLE_NEW


def test_upgrade_lists_each_change_with_its_line_and_reason(upgraded: dict[str, Ended]) -> None:
    told = upgraded["whole"].result.err
    for change in (
        r"old\.yaml:9: trainer\.gpus: 2 -> trainer\.accelerator: gpu, trainer\.devices: 2 \(Lightning 2\.0",
        r"old\.yaml:10: trainer\.accelerator: ddp -> trainer\.strategy: ddp \(Lightning 1\.6",
        r"old\.yaml:15: trainer\.resume_from_checkpoint: \S+ -> fit\.ckpt_path: \S+ \(Lightning 2\.0",
    ):
        assert re.search(f"^{change}", told, re.MULTILINE), told


def test_a_second_upgrade_changes_nothing_and_says_so(upgraded: dict[str, Ended]) -> None:
    assert upgraded["twice"].result.ok().out == WHOLE_NEW
    assert "nothing to change" in upgraded["twice_in_place"].result.ok().out
    assert (upgraded["twice_in_place"].folder / "old.yaml").read_text(encoding="utf-8") == WHOLE_NEW


@pytest.mark.parametrize("name", SHIPPED)
def test_no_config_of_the_repository_needs_an_upgrade(name: str, upgraded: dict[str, Ended]) -> None:
    assert upgraded[f"shipped {name}"].result.ok().out == SHIPPED[name].read_text(encoding="utf-8")


def test_upgrade_moves_arguments_at_the_top_under_the_trainer(upgraded: dict[str, Ended]) -> None:
    assert upgraded["at_the_top"].result.ok().out == AT_THE_TOP_NEW


def test_upgrade_leaves_the_models_own_arguments_alone(upgraded: dict[str, Ended]) -> None:
    command = COMMANDS["own_arguments"]
    assert upgraded["own_arguments"].result.ok().out == command.files["old.yaml"]


def test_upgrade_keeps_line_ends_byte_order_mark_and_a_missing_last_line_end(upgraded: dict[str, Ended]) -> None:
    ended = upgraded["line_ends"]
    ended.result.ok()
    written = (ended.folder / "old.yaml").read_bytes()
    assert written == "\ufefftrainer:\r\n  precision: 16-mixed".encode()


def test_upgrade_prints_the_config_and_leaves_the_file_alone(upgraded: dict[str, Ended]) -> None:
    ended = upgraded["printed"]
    assert ended.result.ok().out == NEW
    assert ended.result.err.startswith("old.yaml:2: trainer.gpus: 0 -> trainer.accelerator: cpu")
    assert (ended.folder / "old.yaml").read_text(encoding="utf-8") == OLD


@pytest.mark.parametrize(("name", "file"), [("in_place", "old.yaml"), ("written", "new.yaml"), ("forced", "new.yaml")])
def test_upgrade_writes_the_file_that_it_is_given(name: str, file: str, upgraded: dict[str, Ended]) -> None:
    ended = upgraded[name]
    assert "old.yaml:2: trainer.gpus: 0 -> " in ended.result.ok().out
    assert (ended.folder / file).read_text(encoding="utf-8") == NEW


def test_upgrade_replaces_another_file_only_by_force(upgraded: dict[str, Ended]) -> None:
    ended = upgraded["onto_another"]
    assert ended.result.code == 2
    assert "--force" in ended.result.err
    assert (ended.folder / "new.yaml").read_text(encoding="utf-8") == "mine: 1\n"


def test_upgrade_names_the_files_below_that_need_it_too(upgraded: dict[str, Ended]) -> None:
    ended = upgraded["extending"].result.ok()
    told = ended.out + ended.err
    assert "lower.yaml needs it too" in told
    assert "today.yaml" not in told


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


def test_an_upgraded_config_runs_without_a_notice(upgraded: dict[str, Ended], made_once: Once) -> None:
    new = (upgraded["runs_old"].folder / "new.yaml").read_text(encoding="utf-8")
    printed = run_commands(
        "upgraded-printed", {"new": Command(["fit", "-c", "new.yaml", "--print_config"], {"new.yaml": new})}, made_once
    )["new"].result
    assert "Lightning 1.x" not in printed.err
    assert printed.yaml["trainer"]["accelerator"] == "cpu"
    assert printed.yaml["trainer"]["max_steps"] == -1
    assert printed.yaml["callbacks"]["device_stats"]["class_path"].endswith("DeviceStatsMonitor")
