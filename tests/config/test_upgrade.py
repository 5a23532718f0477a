"""What an upgrade writes, lists and refuses."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from lightkit.config.upgrade import Upgraded, upgrade_file
from lightkit.errors import ConfigError


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


def test_comments_above_and_behind_arguments_at_the_top_stay_there() -> None:
    text = """\
        # my experiment
        model: Net

        # long enough
        max_epochs: 10   # ten
        callbacks:
        - class_path: my.Callback   # mine
        # flowers
        data: Photos
        """
    new = """\
        # my experiment
        model: Net

        # long enough
        trainer:
          max_epochs: 10 # ten
          callbacks:
          - class_path: my.Callback # mine
        # flowers
        data: Photos
        """
    result = upgraded(text)

    assert result.text == dedent(new)
    assert [line for line, _ in result.changes] == [5, 6]


def test_an_argument_at_the_top_joins_the_trainer_that_is_there() -> None:
    text = "max_epochs: 3\ntrainer:\n    min_epochs: 1  # one\n    # the end\nmodel: Net\n"

    new = "trainer:\n    min_epochs: 1  # one\n    # the end\n    max_epochs: 3\nmodel: Net\n"
    assert upgraded(text).text == new
    assert refusals("max_epochs: 3\ntrainer:\n  max_epochs: 4\n") == [
        "max_epochs: 3: contradicts trainer.max_epochs: 4; say one"
    ]


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
        ("lightning.pytorch.callbacks.Timer", "lightning.pytorch.callbacks.Timer"),
        ("my.callbacks.GPUStatsMonitor", "my.callbacks.GPUStatsMonitor"),
        ("pytorch_lightning.callbacks.Timer", "pytorch_lightning.callbacks.Timer"),
    ],
)
@pytest.mark.parametrize("form", ["[{}]", "{}", "{{class_path: {}}}", "- class_path: {}", "- {}"])
def test_a_class_gets_its_path_of_today(form: str, old: str, new: str) -> None:
    text = "trainer:\n  callbacks:" + (f"\n  {form}" if form[0] == "-" else f" {form}") + "\n"

    assert upgraded(text.format(old)).text == text.format(new)


def test_a_strategy_among_the_plugins_becomes_the_strategy() -> None:
    text = """\
        trainer:
          plugins:
            - class_path: pytorch_lightning.plugins.DDPPlugin   # ours
              init_args:
                find_unused_parameters: false
          precision: 32
        """
    new = """\
        trainer:
          strategy:
            class_path: pytorch_lightning.strategies.DDPStrategy # ours
            init_args:
              find_unused_parameters: false
          precision: 32
        """
    assert upgraded(text).text == dedent(new)


def test_the_name_of_a_strategy_in_a_list_of_plugins_becomes_the_strategy() -> None:
    text = "trainer:\n  plugins:  # why\n    - deepspeed  # fast\n  max_epochs: 1\n"

    assert (3, "# fast -> nothing (the comment has lost its place)") in upgraded(text).changes
    assert upgraded(text).text == "trainer:\n  strategy: deepspeed # why\n  max_epochs: 1\n"
    assert upgraded("trainer: {plugins: [deepspeed]}\n").text == "trainer: {strategy: deepspeed}\n"


def test_a_trainer_that_loses_all_its_arguments_is_empty() -> None:
    assert upgraded("trainer:  # mine\n  ipus: null\nmodel: Net\n").text == "trainer: {}  # mine\nmodel: Net\n"
    assert upgraded("fit: {trainer: {ipus: null, hpus: null}}\n").text == "fit: {trainer: {}}\n"


def test_num_processes_of_one_says_nothing_over_gpus_of_a_lower_layer() -> None:
    Path("base.yaml").write_text("trainer:\n  gpus: 2\n")
    result = upgraded("extends: base\ntrainer:\n  num_processes: 1\n  max_epochs: 3\n")

    assert result.text == "extends: base\ntrainer:\n  max_epochs: 3\n"
    assert result.extended == (Path("base.yaml"),)


def test_an_empty_file_needs_no_upgrade() -> None:
    assert upgraded("# nothing yet\n").text == "# nothing yet\n"
    assert upgraded("").changes == ()


def test_a_question_in_a_comment_is_no_long_form() -> None:
    assert upgraded("trainer:\n  # why?\n  gpus: 2\n").text == "trainer:\n  # why?\n  accelerator: gpu\n  devices: 2\n"
