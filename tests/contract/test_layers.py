"""The rules by which layers become one config, read off what `fit --print_config` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.contract.command_table import Command, Ended, run_commands
from tests.contract.conftest import Once

RULES_PY = '''\
"""A model that takes anything."""

from typing import Any

import torch
from my_project import Net


class Anything(Net):
    """A network with arguments of any type.

    Args:
        a: Anything.
        b: Anything.
        c: Anything.
        part: A module.
    """

    def __init__(
        self, a: Any = None, b: Any = None, c: Any = None, part: torch.nn.Module | None = None
    ):
        super().__init__()
'''
NET = "model: {class_path: my_project.Net, init_args: {hidden: 9, name: low}}"
STOPPING = "callbacks: {early_stopping: {monitor: val/loss, patience: 5}}"


@dataclass(frozen=True)
class Rule:
    """Layers, and what becomes of them.

    Args:
        layers: Contents of the files after `-c`, in order.
        becomes: Expected values in the printed config by dotted key; `...` where there must be no
            such key.
        flags: Words of the command line.
        environ: Variables.
        files: Other files.
    """

    layers: Sequence[str]
    becomes: Mapping[str, Any]
    flags: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> Command:
        files = {f"layer{number}.yaml": text for number, text in enumerate(self.layers)}
        words = [word for file in files for word in ("-c", file)]
        return Command(
            ["fit", *words, *self.flags, "--print_config"],
            {"rules.py": RULES_PY, **files, **self.files},
            self.environ,
        )


def anything(init_args: str) -> str:
    """Write a layer that gives the model these arguments."""
    return f"model: {{class_path: rules.Anything, init_args: {init_args}}}"


MERGING = {
    "mappings_merge_key_by_key": Rule(
        [anything("{a: {x: {y: 1, z: 1}}}"), anything("{a: {x: {z: 2, w: 2}}}")],
        {"model.init_args.a": {"x": {"y": 1, "z": 2, "w": 2}}},
    ),
    "a_scalar_replaces": Rule(
        [anything("{a: 1}"), anything("{a: two}")], {"model.init_args.a": "two"}
    ),
    "a_list_replaces": Rule(
        [anything("{a: [1, 2]}"), anything("{a: [3]}")], {"model.init_args.a": [3]}
    ),
    "null_replaces_a_mapping": Rule(
        [anything("{a: {x: 1}}"), anything("{a: null}")], {"model.init_args.a": None}
    ),
    "a_mapping_after_null_starts_anew": Rule(
        [anything("{a: {x: 1}}"), anything("{a: null}"), anything("{a: {y: 1}}")],
        {"model.init_args.a": {"y": 1}},
    ),
    "an_empty_file_changes_nothing": Rule(
        [anything("{a: 1}"), "", "# nothing\n"], {"model.init_args.a": 1}
    ),
    "anchors_and_merge_keys": Rule(
        [anything("{a: &a {x: 1, y: 1}, b: {<<: *a, y: 2}, c: *a}")],
        {"model.init_args.b": {"x": 1, "y": 2}, "model.init_args.c": {"x": 1, "y": 1}},
    ),
    "a_dotted_key": Rule(
        [NET, "trainer.max_epochs: 4\nmodel.hidden: 3"],
        {"trainer.max_epochs": 4, "model.init_args.hidden": 3, "model.init_args.name": "low"},
    ),
    "a_block_of_the_command_over_the_top": Rule(
        [
            NET
            + "\ntrainer: {max_epochs: 1, min_epochs: 1}\nfit: {trainer: {max_epochs: 2}}\ntest:"
            " {model: {hidden: 1}}"
        ],
        {"trainer.max_epochs": 2, "trainer.min_epochs": 1, "model.init_args.hidden": 9},
    ),
    "a_file_for_a_section": Rule(
        ["model: parts/model.yaml\ntrainer: parts/trainer.yaml"],
        {"model.init_args.hidden": 3, "trainer.max_epochs": 4},
        files={
            "parts/model.yaml": "class_path: my_project.Net\ninit_args: {hidden: 3}",
            "parts/trainer.yaml": "max_epochs: 4",
        },
    ),
}
APPENDING = {
    "layers_append_in_order": Rule(
        [anything("{a: [1]}"), anything("{a+: [2, 3]}"), anything("{a+: 4}")],
        {"model.init_args.a": [1, 2, 3, 4]},
    ),
    "to_nothing": Rule(
        [NET, "model: {init_args: {tags+: [x]}}", "model: {tags+: y}"],
        {"model.init_args.tags": ["x", "y"]},
    ),
    "to_null": Rule([anything("{a: null}"), anything("{a+: [1]}")], {"model.init_args.a": [1]}),
    "then_replaced": Rule(
        [anything("{a+: [1]}"), anything("{a: [2]}")], {"model.init_args.a": [2]}
    ),
    "within_one_file": Rule([anything("{a+: [2], a: [1]}")], {"model.init_args.a": [1, 2]}),
    "by_flags": Rule(
        [anything("{a: [x]}")],
        {"model.init_args.a": ["x", "y", 3, 4]},
        flags=["--model.a+=y", "model.init_args.a+=[3, 4]"],
    ),
}
CLASSES = {
    "a_new_class": Rule(
        [NET, "model: {class_path: my_project.Wide, init_args: {width: 3}}"],
        {"model": {"class_path": "my_project.Wide", "init_args": {"width": 3}}},
    ),
    "a_new_class_by_name": Rule(
        [NET, "model: my_project.Wide"],
        {"model": {"class_path": "my_project.Wide", "init_args": {"width": 16}}},
    ),
    "a_new_class_by_flag": Rule(
        [NET],
        {"model": {"class_path": "my_project.Wide", "init_args": {"width": 16}}},
        flags=["--model=my_project.Wide"],
    ),
    "the_same_class_keeps_them": Rule(
        [NET, "model: {class_path: my_project.Net, init_args: {name: high}}"],
        {"model.init_args.hidden": 9, "model.init_args.name": "high"},
    ),
    "the_same_class_spelled_short": Rule(
        [
            NET + "\noptimizer: {class_path: torch.optim.Adam, init_args: {lr: 0.5}}",
            "optimizer: {class_path: Adam, init_args: {eps: 0.25}}",
        ],
        {
            "optimizer.class_path": "torch.optim.Adam",
            "optimizer.init_args.lr": 0.5,
            "optimizer.init_args.eps": 0.25,
        },
    ),
    "a_class_within_a_class": Rule(
        [
            anything(
                "{part: {class_path: torch.nn.Linear, init_args: {in_features: 2, out_features: 3,"
                " bias: false}}}"
            ),
            anything(
                "{part: {class_path: torch.nn.Bilinear, init_args:"
                " {in1_features: 1, in2_features: 1}}}"
            ),
        ],
        {
            "model.init_args.part.class_path": "torch.nn.Bilinear",
            "model.init_args.part.init_args.in_features": ...,
            "model.init_args.part.init_args.bias": True,
        },
        flags=["--model.part.out_features=4"],
    ),
    "arguments_without_init_args": Rule(
        [NET, "model: {hidden: 3}"], {"model.init_args.hidden": 3, "model.init_args.name": "low"}
    ),
    "an_argument_before_its_class": Rule(
        ["model: {hidden: 3}", "model: my_project.Net"], {"model.init_args.hidden": 3}
    ),
}
EXTENDS = {
    "the_file_itself_comes_last": Rule(
        [NET + "\nextends: base\ntrainer: {max_epochs: 2}"],
        {"trainer.max_epochs": 2, "trainer.min_epochs": 1},
        files={"base.yaml": "trainer: {max_epochs: 1, min_epochs: 1}"},
    ),
    "in_order": Rule(
        [NET + "\nextends: [one.yaml, two]"],
        {"trainer.max_epochs": 2, "trainer.min_epochs": 1},
        files={
            "one.yaml": "trainer: {max_epochs: 1, min_epochs: 1}",
            "two.yaml": "trainer: {max_epochs: 2}",
        },
    ),
    "relative_to_the_file_that_says_it": Rule(
        [NET + "\nextends: sub/one"],
        {"trainer.max_epochs": 5},
        files={"sub/one.yaml": "extends: ../two", "two.yaml": "trainer: {max_epochs: 5}"},
    ),
    "a_base_that_two_share_is_laid_once": Rule(
        [NET + "\nextends: [b, c]"],
        {"trainer.max_epochs": 2},
        files={
            "base.yaml": "trainer: {max_epochs: 1}",
            "b.yaml": "extends: base\ntrainer: {max_epochs: 2}",
            "c.yaml": "extends: base",
        },
    ),
    "before_the_next_file": Rule(
        [NET + "\ntrainer: {max_epochs: 1}", "extends: base"],
        {"trainer.max_epochs": 2},
        files={"base.yaml": "trainer: {max_epochs: 2}"},
    ),
}
ENTRIES = {
    "the_name_gives_the_class": Rule(
        [NET, STOPPING],
        {
            "callbacks.early_stopping.class_path": "pytorch_lightning.callbacks.EarlyStopping",
            "callbacks.early_stopping.init_args.patience": 5,
        },
    ),
    "a_later_layer_changes_one": Rule(
        [NET + "\n" + STOPPING, "callbacks: {early_stopping: {init_args: {min_delta: 0.5}}}"],
        {
            "callbacks.early_stopping.init_args.patience": 5,
            "callbacks.early_stopping.init_args.min_delta": 0.5,
        },
    ),
    "a_later_layer_adds_one": Rule(
        [
            NET + "\n" + STOPPING,
            "callbacks: {word: {class_path: my_project.WriteWord, init_args: {word: hi}}}",
        ],
        {"callbacks.early_stopping.init_args.patience": 5, "callbacks.word.init_args.word": "hi"},
    ),
    "by_the_name_of_a_class": Rule(
        [NET, "callbacks: {word: my_project.WriteWord}"],
        {"callbacks.word.class_path": "my_project.WriteWord"},
    ),
    "null_removes_one": Rule(
        [NET + "\n" + STOPPING, "callbacks: {early_stopping: null, lr_monitor: {}}"],
        {"callbacks.early_stopping": None, "callbacks.lr_monitor.init_args.logging_interval": None},
    ),
    "a_flag_removes_one": Rule(
        [NET, STOPPING],
        {"callbacks.early_stopping": None},
        flags=["--callbacks.early_stopping=null"],
    ),
    "one_comes_back_without_its_old_arguments": Rule(
        [
            NET + "\n" + STOPPING,
            "callbacks: {early_stopping: null}",
            "callbacks: {early_stopping: {monitor: x}}",
        ],
        {
            "callbacks.early_stopping.init_args.monitor": "x",
            "callbacks.early_stopping.init_args.patience": 3,
        },
    ),
    "a_logger_replaces_the_default": Rule(
        [NET, "logger: {tensorboard: null, csv: {}}"],
        {"logger.tensorboard": None, "logger.csv.class_path": "lightkit.loggers.CSV"},
    ),
}
INTERPOLATION = {
    "of_another_key": Rule(
        [anything("{a: {x: 1}, b: '${model.init_args.a}', c: 'is ${model.init_args.a.x}'}")],
        {"model.init_args.b": {"x": 1}, "model.init_args.c": "is 1"},
    ),
    "relative": Rule(
        [anything("{a: {x: 1, y: '${.x}'}}")], {"model.init_args.a": {"x": 1, "y": 1}}
    ),
    "after_all_layers": Rule(
        [
            anything("{a: '${trainer.max_epochs}'}") + "\ntrainer: {max_epochs: 1}",
            "trainer: {max_epochs: 2}",
        ],
        {"model.init_args.a": 3},
        flags=["--trainer.max_epochs=3"],
    ),
    "a_default_for_a_variable_that_is_not_set": Rule(
        ["trainer: {max_epochs: '${oc.env:EPOCHS,7}'}", NET],
        {"trainer.max_epochs": "${oc.env:EPOCHS,7}"},
    ),
    "escaped": Rule([anything(r"{a: 'x\${b}'}")], {"model.init_args.a": r"x\${b}"}),
}
SCALARS = {
    "exponent": Rule([anything("{a: 1e-3}")], {"model.init_args.a": 0.001}),
    "underscores": Rule([anything("{a: 1_000}")], {"model.init_args.a": 1000}),
    "infinity": Rule([anything("{a: -.inf}")], {"model.init_args.a": float("-inf")}),
    "null": Rule([anything("{a: ~}")], {"model.init_args.a": None}),
    "keys_of_a_mapping": Rule(
        [anything("{a: {0: 1, 2.5: {true: 3}}}")], {"model.init_args.a": {0: 1, 2.5: {True: 3}}}
    ),
    "quoted_is_text": Rule([NET, "model: {name: '1e-3'}"], {"model.init_args.name": "1e-3"}),
    "text_where_text_is_expected": Rule(
        [NET], {"model.init_args.name": "123"}, flags=["--model.name=123"]
    ),
    "exponent_of_a_flag": Rule(
        [NET], {"trainer.gradient_clip_val": 0.001}, flags=["--trainer.gradient_clip_val=1e-3"]
    ),
    "exponent_of_a_variable": Rule(
        [NET],
        {"trainer.gradient_clip_val": 0.001},
        environ={"LIGHTKIT_TRAINER__GRADIENT_CLIP_VAL": "1e-3"},
    ),
}
FLAGS = {
    "joined": Rule([NET], {"trainer.max_epochs": 3}, flags=["--trainer.max_epochs=3"]),
    "apart": Rule([NET], {"trainer.max_epochs": -1}, flags=["--trainer.max_epochs", "-1"]),
    "bare": Rule([NET], {"model.init_args.name": "x=y"}, flags=["model.name=x=y"]),
    "with_init_args": Rule([NET], {"model.init_args.hidden": 3},
                           flags=["--model.init_args.hidden=3"]),
    "the_last_one_counts": Rule([NET], {"model.init_args.hidden": 3},
                                flags=["model.hidden=2", "--model.hidden=3"]),
    "a_mapping": Rule([anything("{a: {x: 1}}")], {"model.init_args.a": {"x": 1, "y": [None]}},
                      flags=["--model.a={y: [null]}"]),
    "an_empty_text": Rule([NET], {"model.init_args.name": ""}, flags=["--model.name="]),
    "a_template_with_braces": Rule([NET], {"model.init_args.name": "{epoch:02d}"},
                                   flags=["--model.name={epoch:02d}"]),
    "an_element_of_a_list": Rule(
        [anything("{a: [1, {x: 1}]}")], {"model.init_args.a": [5, {"x": 2}]},
        flags=["model.a.0=5", "model.a.1.x=2"]
    ),
}  # fmt: skip
ORDER = {
    "files_over_defaults": Rule([NET + "\nrun: {wait_s: 1}"],
                                {"run.wait_s": 1, "run.root": "runs"}),
    "files_in_order": Rule([NET, "model: {hidden: 1}", "model: {hidden: 2}"],
                           {"model.init_args.hidden": 2}),
    "variables_over_files": Rule(
        [NET], {"model.init_args.hidden": 3}, environ={"LIGHTKIT_MODEL__INIT_ARGS__HIDDEN": "3"}
    ),
    "flags_over_variables": Rule(
        [NET], {"seed_everything": 4}, environ={"LIGHTKIT_SEED_EVERYTHING": "3"},
        flags=["--seed_everything=4"]
    ),
    "a_variable_for_a_section_before_those_for_its_keys": Rule(
        [NET],
        {"model": {"class_path": "my_project.Wide", "init_args": {"width": 3}}},
        environ={"LIGHTKIT_MODEL__WIDTH": "3", "LIGHTKIT_MODEL": "my_project.Wide"},
    ),
    "a_list_in_a_variable": Rule([NET], {"model.init_args.tags": ["a", "b"]},
                                 environ={"LIGHTKIT_MODEL__TAGS": "[a, b]"}),
    "a_variable_finds_keys_with_capitals": Rule(
        [NET + "\noptimizer: {class_path: SGD, init_args: {lr: 0.5}}\n"
         "lr_scheduler: {class_path: CosineAnnealingLR, init_args: {T_max: 1}}"],
        {"lr_scheduler.init_args.T_max": 2},
        environ={"LIGHTKIT_LR_SCHEDULER__INIT_ARGS__T_MAX": "2"},
    ),
}  # fmt: skip
RULES = {
    **MERGING,
    **APPENDING,
    **CLASSES,
    **EXTENDS,
    **ENTRIES,
    **INTERPOLATION,
    **SCALARS,
    **FLAGS,
    **ORDER,
}


@pytest.fixture(scope="module")
def printed(made_once: Once) -> dict[str, Ended]:
    """What `--print_config` prints for each rule."""
    return run_commands("layers", {name: rule.command for name, rule in RULES.items()}, made_once)


def assert_holds(rule: Rule, ended: Ended) -> None:
    """Assert that the config has the values that the rule expects."""
    config = ended.result.yaml
    assert {key: value_of(config, key) for key in rule.becomes} == dict(rule.becomes)


def value_of(config: Any, key: str) -> Any:
    """Give the value of a dotted key, `...` if there is none."""
    for part in key.split("."):
        if part not in config:
            return ...
        config = config[part]
    return config


@pytest.mark.parametrize("name", MERGING)
def test_layers_merge_mappings_and_replace_all_else(name: str, printed: dict[str, Ended]) -> None:
    assert_holds(RULES[name], printed[name])


@pytest.mark.parametrize("name", APPENDING)
def test_a_key_with_a_plus_appends(name: str, printed: dict[str, Ended]) -> None:
    assert_holds(RULES[name], printed[name])


@pytest.mark.parametrize("name", CLASSES)
def test_a_new_class_drops_the_arguments_of_the_one_before(
    name: str, printed: dict[str, Ended]
) -> None:
    assert_holds(RULES[name], printed[name])


@pytest.mark.parametrize("name", EXTENDS)
def test_a_file_is_laid_on_what_it_extends(name: str, printed: dict[str, Ended]) -> None:
    assert_holds(RULES[name], printed[name])


@pytest.mark.parametrize("name", ENTRIES)
def test_a_later_layer_changes_adds_and_removes_named_entries(
    name: str, printed: dict[str, Ended]
) -> None:
    assert_holds(RULES[name], printed[name])


@pytest.mark.parametrize("name", INTERPOLATION)
def test_interpolations_are_resolved_after_all_layers(name: str, printed: dict[str, Ended]) -> None:
    assert_holds(RULES[name], printed[name])


@pytest.mark.parametrize("name", SCALARS)
def test_scalars_are_read_as_jsonargparse_reads_them(name: str, printed: dict[str, Ended]) -> None:
    assert_holds(RULES[name], printed[name])


@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_taken_in_each_spelling(name: str, printed: dict[str, Ended]) -> None:
    assert_holds(RULES[name], printed[name])


@pytest.mark.parametrize("name", ORDER)
def test_defaults_then_files_then_variables_then_flags(
    name: str, printed: dict[str, Ended]
) -> None:
    assert_holds(RULES[name], printed[name])
