"""What an upgrade writes, lists and refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from textwrap import dedent

import pytest

from lightkit.config.upgrade import Upgraded, upgrade_file
from lightkit.config.upgrade.hardware import OLD_HARDWARE_KEYS
from lightkit.config.upgrade.trainer_arguments import GONE_ARGUMENTS
from lightkit.errors import ConfigError

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def upgraded(text: str, name: str = "old.yaml") -> Upgraded:
    """Upgrade a text as a file of the working directory."""
    Path(name).write_bytes(dedent(text).encode())
    return upgrade_file(Path(name))


def refusals(text: str) -> list[str]:
    """Give the first line of each refusal."""
    with pytest.raises(ConfigError) as caught:
        upgraded(text)
    return [str(problem).splitlines()[0] for problem in caught.value.problems]


def trainer(line: str) -> str:
    """Upgrade one argument of a trainer, and give what stands there then."""
    return upgraded(f"trainer:\n  {line}\n  max_time: null\n").text.removesuffix("  max_time: null\n")


def test_a_whole_config_is_upgraded_and_keeps_its_comments_order_and_spaces() -> None:
    result = upgrade_file(HERE / "old.yaml")

    assert result.text == (HERE / "new.yaml").read_text()
    assert [change.line for change in result.changes] == [
        *(9, 10, 11, 13, 16, 17, 18, 19, 20, 21, 22, 23, 24, 29, 33, 34, 35, 36, 52, 52, 52)
    ]


def test_what_is_upgraded_needs_no_upgrade() -> None:
    result = upgrade_file(HERE / "new.yaml")

    assert result.changes == ()
    assert result.text == (HERE / "new.yaml").read_text()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gpus: 2", "accelerator: gpu\n  devices: 2"),
        ('gpus: "2"', "accelerator: gpu\n  devices: 2"),
        ("gpus: [0, 3]", "accelerator: gpu\n  devices: [0, 3]"),
        ("gpus: 0,3", "accelerator: gpu\n  devices: [0, 3]"),
        ("gpus: -1", "accelerator: gpu\n  devices: -1"),
        ("gpus: 0", "accelerator: cpu\n  devices: auto"),
        ("gpus: null", "accelerator: cpu\n  devices: auto"),
        ("tpu_cores: 8", "accelerator: tpu\n  devices: 8"),
        ("num_processes: 2", "accelerator: cpu\n  devices: 2\n  strategy: ddp"),
        ("strategy: tpu_spawn", "strategy: xla\n  accelerator: tpu"),
        ("strategy: fsdp_native", "strategy: fsdp"),
        ("strategy: null", "strategy: auto"),
        ("accelerator: ddp", "strategy: ddp"),
        ("accelerator: ddp_cpu", "accelerator: cpu\n  strategy: ddp"),
        ("accelerator: horovod", "strategy: horovod"),
        ("distributed_backend: ddp_spawn", "strategy: ddp_spawn"),
        ("plugins: deepspeed_stage_2", "strategy: deepspeed_stage_2"),
        ("precision: 16", "precision: 16-mixed"),
        ('precision: "bf16"', "precision: bf16-mixed"),
        ("checkpoint_callback: false", "enable_checkpointing: false"),
        ("replace_sampler_ddp: ${sampler}", "use_distributed_sampler: ${sampler}"),
        ("progress_bar_refresh_rate: 0", "enable_progress_bar: false"),
        ("weights_summary: top", "enable_model_summary: true"),
        ("weights_summary: null", "enable_model_summary: false"),
        ("reload_dataloaders_every_epoch: true", "reload_dataloaders_every_n_epochs: 1"),
        ("terminate_on_nan: true  # why", "detect_anomaly: true  # why"),
        ("max_steps: null", "max_steps: -1"),
        ("profiler: true", "profiler: simple"),
    ],
)
def test_an_old_argument_becomes_todays(old: str, new: str) -> None:
    assert trainer(old) == f"trainer:\n  {new}\n"


@pytest.mark.parametrize(
    "line",
    [
        *(
            "amp_backend: native",
            "amp_level: null",
            "auto_lr_find: false",
            "auto_scale_batch_size: false",
            "ipus: null",
        ),
        *("auto_select_gpus: false", "automatic_optimization: true", "enable_pl_optimizer: false", "hpus: 0"),
        *("flush_logs_every_n_steps: 100", "log_gpu_memory: null", "move_metrics_to_cpu: false", "process_position: 0"),
        *("multiple_trainloader_mode: max_size_cycle", "prepare_data_per_node: true", "progress_bar_refresh_rate: 1"),
        *(
            "resume_from_checkpoint: null",
            "stochastic_weight_avg: false",
            "track_grad_norm: -1",
            "terminate_on_nan: null",
        ),
        *("truncated_bptt_steps: null", "weights_save_path: null", "accumulate_grad_batches: null", "profiler: false"),
    ],
)
def test_an_argument_that_does_nothing_goes_and_its_comment_stays(line: str) -> None:
    assert trainer(f"{line}   # a remark") == "trainer:\n  # a remark\n"


@pytest.mark.parametrize(
    ("old", "beside"),
    [
        ("resume_from_checkpoint: a.ckpt", "fit:\n  ckpt_path: a.ckpt\n"),
        ("logger: true", "logger:\n  tensorboard: {}\n"),
        ("log_gpu_memory: all", "callbacks:\n  device_stats: {}\n"),
        ("weights_save_path: 'my weights'", "callbacks:\n  checkpoint:\n    init_args:\n      dirpath: 'my weights'\n"),
        (
            "accumulate_grad_batches: {4: 2}",
            "callbacks:\n  gradient_accumulation:\n    init_args:\n      scheduling:\n        4: 2\n",
        ),
        (
            "process_position: 2",
            "callbacks:\n  progress_bar:\n    class_path: pytorch_lightning.callbacks.TQDMProgressBar\n"
            "    init_args:\n      process_position: 2\n",
        ),
    ],
)
def test_what_is_no_argument_of_the_trainer_any_more_stands_beside_it(old: str, beside: str) -> None:
    text = f"trainer:\n  max_epochs: 3\n  {old}\n  # my own remark\n\nmodel: Net\n"

    assert upgraded(text).text == f"trainer:\n  max_epochs: 3\n  # my own remark\n{beside}\nmodel: Net\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ipus: 4", "trainer.ipus: 4: Lightning 2.1 dropped IPUs; use gpus, tpu_cores or cpu"),
        ("strategy: dp", "trainer.strategy: dp is no strategy any more: Lightning 2.0 dropped it; use ddp"),
        ("accelerator: ddp2", "trainer.accelerator: ddp2 is no strategy any more"),
        (
            "plugins: ddp_sharded",
            "trainer.strategy: ddp_sharded is no strategy any more: Lightning 2.0 dropped FairScale",
        ),
        ("amp_backend: apex", "trainer.amp_backend: apex: Lightning 2.0 dropped NVIDIA Apex; say precision: 16-mixed"),
        ("amp_level: O2", "trainer.amp_level: O2: Lightning 2.0 dropped NVIDIA Apex"),
        (
            "auto_lr_find: true",
            "trainer.auto_lr_find: true: Lightning 2.0 made it a callback; 1.x heeded it in trainer.tune()",
        ),
        ("auto_select_gpus: true", "trainer.auto_select_gpus: true: Lightning 2.0 dropped it; name the GPUs"),
        ("track_grad_norm: 2", "trainer.track_grad_norm: 2: Lightning 2.0 dropped it; log it in the model"),
        ("prepare_data_per_node: false", "trainer.prepare_data_per_node: false: Lightning 1.7 moved it into the data"),
        ("stochastic_weight_avg: true", "trainer.stochastic_weight_avg: true: Lightning 1.7 made it a callback, whose"),
        ("truncated_bptt_steps: 5", "trainer.truncated_bptt_steps: 5: Lightning 2.0 dropped it; split the sequence"),
        (
            "multiple_trainloader_mode: min_size",
            "trainer.multiple_trainloader_mode: min_size: Lightning 2.0 dropped it",
        ),
        ("gpus: ${oc.env:N}", "trainer.gpus: ${oc.env:N}: what it is today depends on its value; write the value out"),
        ("terminate_on_nan: ${x}", "trainer.terminate_on_nan: ${x}: Lightning 1.7 dropped it for detect_anomaly; what"),
        (
            "logger: pytorch_lightning.loggers.TestTubeLogger",
            "trainer.logger: pytorch_lightning.loggers.TestTubeLogger: ",
        ),
    ],
)
def test_what_has_no_equivalent_is_refused_with_the_reason(line: str, says: str) -> None:
    assert [first.startswith(says) for first in refusals(f"trainer:\n  {line}\n")] == [True]


def test_all_that_has_no_equivalent_is_refused_at_once_with_its_places() -> None:
    text = """\
        trainer:
          ipus: 4        # four
          auto_lr_find: true
        fit:
          trainer: {strategy: dp}
        """
    with pytest.raises(ConfigError) as caught:
        upgraded(text)

    assert "\n  --> old.yaml:2:9\n    2 |   ipus: 4        # four\n      |         ^\n" in str(caught.value)
    assert [f"old.yaml:{place}" in str(caught.value) for place in ("2:9", "3:17", "5:23")] == [True] * 3
    assert caught.value.exit_code == 2


def test_two_keys_that_exclude_each_other_are_refused() -> None:
    assert refusals("trainer:\n  gpus: 1\n  tpu_cores: 8\n")[0].startswith("trainer.gpus: 1 contradicts")
    assert refusals("trainer:\n  checkpoint_callback: true\n  enable_checkpointing: false\n") == [
        "trainer.checkpoint_callback: true: contradicts trainer.enable_checkpointing: false; say one of them"
    ]


def test_an_old_word_wins_over_the_default_of_the_newer_one_that_was_printed_beside_it() -> None:
    old = ["terminate_on_nan: true", "weights_summary: null", "detect_anomaly: false", "enable_model_summary: true"]
    text = "\n  ".join(["trainer:", *old]) + "\n"

    assert upgraded(text).text == "trainer:\n  detect_anomaly: true\n  enable_model_summary: false\n"


def test_the_printed_config_of_lightning_1_5_becomes_one_without_old_words() -> None:
    lines = [f"  {key}: null" for key in (*OLD_HARDWARE_KEYS, *GONE_ARGUMENTS) if key != "weights_summary"]
    result = upgraded("\n".join(["trainer:", *lines, "  weights_summary: top", "  enable_model_summary: true", ""]))

    assert result.text == "trainer:\n  accelerator: cpu\n  devices: auto\n  enable_model_summary: true\n"


def test_arguments_at_the_top_move_under_the_trainer_with_their_comments() -> None:
    text = """\
        # my experiment

        gpus: 2
        # long enough
        max_epochs: 10   # ten
        model: Net
        callbacks:
        - class_path: my.Callback   # mine
        fit:
          min_epochs: 2
        """
    new = """\
        # my experiment

        trainer:
          accelerator: gpu
          devices: 2
          # long enough
          max_epochs: 10   # ten
          callbacks:
          - class_path: my.Callback   # mine
        model: Net
        fit:
          trainer:
            min_epochs: 2
        """
    result = upgraded(text)

    assert result.text == dedent(new)
    assert [change.line for change in result.changes] == [3, 3, 5, 7, 10]


def test_a_refusal_of_an_argument_at_the_top_shows_where_it_stood() -> None:
    with pytest.raises(ConfigError) as caught:
        upgraded("model: Net\nmax_epochs: 3\nipus: 4\n")

    assert str(caught.value).endswith("\n  --> old.yaml:3:7\n    3 | ipus: 4\n      |       ^")


def test_an_argument_at_the_top_joins_the_trainer_that_is_there() -> None:
    text = "max_epochs: 3\ntrainer:\n    min_epochs: 1  # one\n    # the end\nmodel: Net\n"

    new = "trainer:\n    min_epochs: 1  # one\n    # the end\n    max_epochs: 3\nmodel: Net\n"
    assert upgraded(text).text == new
    assert refusals("max_epochs: 3\ntrainer:\n  max_epochs: 4\n") == [
        "max_epochs: 3: contradicts trainer.max_epochs: 4; say one"
    ]


def test_a_key_that_others_refer_to_stays() -> None:
    text = "max_epochs: 3\nmodel: {class_path: Net, init_args: {steps: '${max_epochs}'}}\n"
    assert "${max_epochs} refers to it" in refusals(text)[0]
    text = "trainer:\n  gpus: 2\nmodel: {class_path: Net, init_args: {gpus: '${trainer.gpus}'}}\n"
    assert "${trainer.gpus} refers to it" in refusals(text)[0]


def test_the_models_own_arguments_are_left_alone() -> None:
    text = "model:\n  class_path: Net\n  init_args: {max_epochs: 3, gpus: 2, precision: 16, mode: auto}\n"

    assert upgraded(text).changes == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pytorch_lightning.callbacks.XLAStatsMonitor", "pytorch_lightning.callbacks.DeviceStatsMonitor"),
        ("pytorch_lightning.callbacks.progress.ProgressBar", "pytorch_lightning.callbacks.TQDMProgressBar"),
        (
            "lightning.pytorch.callbacks.gpu_stats_monitor.GPUStatsMonitor",
            "pytorch_lightning.callbacks.DeviceStatsMonitor",
        ),
        ("GPUStatsMonitor", "DeviceStatsMonitor"),
        ("lightning.pytorch.callbacks.Timer", "pytorch_lightning.callbacks.Timer"),
        ("my.callbacks.GPUStatsMonitor", "my.callbacks.GPUStatsMonitor"),
        ("pytorch_lightning.callbacks.Timer", "pytorch_lightning.callbacks.Timer"),
    ],
)
@pytest.mark.parametrize("form", ["[{}]", "{}", "{{class_path: {}}}", "\n  - class_path: {}", "\n  - {}"])
def test_a_class_gets_its_path_of_today(form: str, old: str, new: str) -> None:
    text = "trainer:\n  callbacks: " + form + "\n"

    assert upgraded(text.format(old)).text == text.format(new)


def test_a_strategy_among_the_plugins_becomes_the_strategy() -> None:
    text = """\
        trainer:
          plugins:
            - class_path: pytorch_lightning.plugins.DDPPlugin   # ours
              init_args:
                find_unused_parameters: false
                sync_batchnorm: true
          precision: 32
        """
    new = """\
        trainer:
          strategy:
              class_path: pytorch_lightning.strategies.DDPStrategy   # ours
              init_args:
                find_unused_parameters: false
          precision: 32
        """
    assert upgraded(text).text == dedent(new)
    ddp = "pytorch_lightning.strategies.DDPStrategy, init_args: {start_method: spawn}"
    new = upgraded("trainer: {plugins: [{class_path: DDPSpawnPlugin}]}\n").text
    assert new == f"trainer: {{strategy: {{class_path: {ddp}}}}}\n"


def test_the_name_of_a_strategy_in_a_list_of_plugins_becomes_the_strategy() -> None:
    text = "trainer:\n  plugins:  # why\n    - deepspeed  # fast\n  max_epochs: 1\n"

    assert upgraded(text).text == "trainer:\n  # why\n  strategy: deepspeed  # fast\n  max_epochs: 1\n"
    assert upgraded("trainer: {plugins: [deepspeed]}\n").text == "trainer: {strategy: deepspeed}\n"
    assert refusals("trainer: {plugins: [deepspeed, my.Plugin]}\n") == [
        "trainer.plugins: Lightning 1.6 made it a strategy; say it under trainer.strategy"
    ]


def test_a_logger_that_is_named_takes_the_place_of_the_default() -> None:
    text = "logger: {csv: {}}\ntrainer: {logger: true, max_epochs: 1}\n"

    assert upgraded(text).text == "logger: {csv: {}}\ntrainer: {max_epochs: 1}\n"


def test_a_bar_or_summary_that_is_there_is_not_added_again() -> None:
    text = "trainer:\n  progress_bar_refresh_rate: 5\n  callbacks: [pytorch_lightning.callbacks.RichProgressBar]\n"

    assert upgraded(text).text == "trainer:\n  callbacks: [pytorch_lightning.callbacks.RichProgressBar]\n"


def test_line_ends_byte_order_mark_and_a_missing_last_line_end_stay() -> None:
    assert (
        upgraded("\ufefftrainer:\r\n  gpus: 2\r\n").text == "\ufefftrainer:\r\n  accelerator: gpu\r\n  devices: 2\r\n"
    )
    assert upgraded("trainer:\n  precision: 16").text == "trainer:\n  precision: 16-mixed"


def test_a_trainer_that_loses_all_its_arguments_is_empty() -> None:
    assert upgraded("trainer:  # mine\n  ipus: null\nmodel: Net\n").text == "trainer: {}  # mine\nmodel: Net\n"
    assert upgraded("fit: {trainer: {ipus: null, hpus: null}}\n").text == "fit: {trainer: {}}\n"


def test_arguments_from_an_anchor_are_refused() -> None:
    text = "base: &base {gpus: 1}\ntrainer:\n  <<: *base\n  max_epochs: 3\n"

    assert refusals(text)[0].startswith("trainer.gpus: 1: it comes from an anchor, which may serve others too")


def test_a_trainer_that_two_commands_share_is_upgraded_once() -> None:
    text = "fit:\n  trainer: &both\n    gpus: 2\ntest:\n  trainer: *both\n"
    new = "fit:\n  trainer: &both\n    accelerator: gpu\n    devices: 2\ntest:\n  trainer: *both\n"

    assert upgraded(text).text == new


def test_an_anchor_that_would_vanish_is_refused() -> None:
    text = "trainer:\n  gpus: &n 2\nmodel: {class_path: Net, init_args: {n: *n}}\n"

    assert "write out the values of anchors" in refusals(text)[0]


def test_num_processes_of_one_says_nothing_over_gpus_of_a_lower_layer() -> None:
    Path("base.yaml").write_text("trainer:\n  gpus: 2\n")
    result = upgraded("extends: base\ntrainer:\n  num_processes: 1\n  max_epochs: 3\n")

    assert result.text == "extends: base\ntrainer:\n  max_epochs: 3\n"
    assert result.extended == (Path("base.yaml"),)


def test_the_command_tune_is_refused() -> None:
    assert refusals("tune:\n  trainer: {max_epochs: 3}\n")[0].startswith("tune: Lightning 2.0 dropped the command")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"trainer: {gpus: 1, gpus: 2}\n", "the key 'gpus' stands twice in one mapping"),
        (b"trainer: !!python/object:os.system {}\n", "the tag !!python/object:os.system is not allowed here"),
        (b"- 1\n", "expected a mapping of keys to values, got a list"),
        (b"a: \xff\n", "expected UTF-8 text, got the byte 0xff"),
        (b"a: [\n", "not valid YAML"),
    ],
    ids=["twice", "tag", "list", "binary", "syntax"],
)
def test_what_is_no_config_is_told_as_everywhere(content: bytes, says: str) -> None:
    Path("old.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=says.replace("[", r"\[")):
        upgrade_file(Path("old.yaml"))


def test_a_pipe_is_refused() -> None:
    os.mkfifo("pipe")

    with pytest.raises(ConfigError, match="pipe: expected a file, got a pipe or a device; save the config"):
        upgrade_file(Path("pipe"))


def test_an_empty_file_needs_no_upgrade() -> None:
    assert upgraded("# nothing yet\n").text == "# nothing yet\n"
    assert upgraded("").changes == ()


CONFIGS = HERE.parents[2] / "configs"


@pytest.mark.parametrize("file", sorted(CONFIGS.rglob("*.yaml")), ids=lambda file: str(file.relative_to(CONFIGS)))
def test_a_shipped_config_needs_no_upgrade(file: Path) -> None:
    assert upgrade_file(file).changes == ()


def test_json_stays_json() -> None:
    text = """\
    {
      "trainer": {
        "gpus": 2,
        "weights_summary": "full",
        "checkpoint_callback": true,
        "precision": 16,
        "resume_from_checkpoint": "a.ckpt"
      },
      "model": {"class_path": "lightning.pytorch.demos.boring_classes.BoringModel"}
    }
    """
    config = json.loads(upgraded(text, "old.json").text)

    assert config["trainer"] == {
        "accelerator": "gpu",
        "devices": 2,
        "enable_model_summary": True,
        "enable_checkpointing": True,
        "precision": "16-mixed",
    }
    assert config["model"] == {"class_path": "pytorch_lightning.demos.boring_classes.BoringModel"}
    assert config["callbacks"]["model_summary"]["init_args"] == {"max_depth": -1}
    assert config["fit"] == {"ckpt_path": "a.ckpt"}


def test_new_sections_of_json_get_lines_of_their_own() -> None:
    text = '{\n  "trainer": {"logger": true},\n  "seed_everything": 1\n}\n'
    new = '{\n  "trainer": {},\n  "seed_everything": 1,\n  "logger": {"tensorboard": {}}\n}\n'
    assert upgraded(text, "old.json").text == new


@pytest.mark.parametrize(
    "text",
    ["? gpus\n: 2\n", "trainer:\n  ? gpus\n  : 2\n", "trainer: {? gpus : 2}\n", "trainer:\n  ?\n    gpus\n  : 2\n"],
    ids=["top", "block", "flow", "own line"],
)
def test_a_key_in_yamls_long_form_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        upgraded(text)
    assert "gpus: it is written as `? gpus`, YAML's long form of a key" in str(caught.value)
    assert "--> old.yaml:" in str(caught.value)


def test_a_question_in_a_comment_is_no_long_form() -> None:
    assert upgraded("trainer:\n  # why?\n  gpus: 2\n").text == "trainer:\n  # why?\n  accelerator: gpu\n  devices: 2\n"


def test_keys_that_exclude_each_other_are_told_beside_those_that_are_gone() -> None:
    found = refusals("trainer: {gpus: 1, tpu_cores: 8, ipus: 4, amp_level: O2, strategy: ddp_sharded}\n")
    assert [problem.split(":")[0] for problem in found] == [
        *("trainer.gpus", "trainer.ipus", "trainer.strategy", "trainer.amp_level")
    ]
    assert found[0].startswith("trainer.gpus: 1 contradicts trainer.tpu_cores: 8")


def test_a_new_section_is_indented_as_most_sections_are() -> None:
    wide, narrow = "model:\n      width: 1\n", "data:\n  size: 1\nrun:\n  name: a\n"
    text = f"{wide}{narrow}trainer:\n  weights_save_path: out\n  max_epochs: 1\n"
    assert "\ncallbacks:\n  checkpoint:\n    init_args:\n      dirpath: out\n" in upgraded(text).text
