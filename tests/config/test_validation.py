"""What the catalogue shows wrong with a config: each mistake in plain words, with its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from lightkit.config import Resolved, resolve
from lightkit.config.overrides import Flag
from lightkit.config.resolved import drop_paths
from lightkit.config.schema import Argument, ClassDescription, ConfigSchema, load_schema
from lightkit.config.validation import (
    ValidationResult,
    find_refused_numbers,
    validate_values,
)

STAGES = ("fit", "validate", "test", "predict")
RECORDED: Mapping[str, str] = load_schema().data["versions"]
CONFIGS = Path(__file__).parents[2] / "configs"


def resolved_from(folder: Path, *texts: str, flags: tuple[str, ...] = ()) -> Resolved:
    files = [folder / f"{number}.yaml" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    said = [
        Flag(key, value, f"--{key}={value}")
        for key, _, value in (flag.partition("=") for flag in flags)
    ]
    return resolve(files, flags=said, environ={}, subcommand="fit", subcommands=STAGES)


def findings_in(folder: Path, *texts: str, flags: tuple[str, ...] = ()) -> ValidationResult:
    resolved = resolved_from(folder, *texts, flags=flags)
    return validate_values(replace(resolved, subcommand="fit"), load_schema())


def messages_of(findings: ValidationResult) -> list[str]:
    return [str(problem).splitlines()[0] for _, problem in findings.problems]


WRONG = {
    "a mapping for an integer": (
        "trainer: {max_epochs: {first: 3}}",
        "trainer.max_epochs: expected an integer or null, got {'first': 3}",
    ),
    "unknown top-level key": ("modle: {}", "modle: no such key; did you mean 'model'?"),
    "a name of a callback": (
        "early_stopping: {patience: 3}",
        "early_stopping: no such key; did you mean 'callbacks.early_stopping'?",
    ),
    "dashes in a name": (
        "max-epochs: 3",
        "max-epochs: no such key; did you mean 'trainer.max_epochs'?",
    ),
    "the beginning of a name": ("seed: 3", "seed: no such key; did you mean 'seed_everything'?"),
    "a name in a section that the config has not": (
        "margin: 0.1",
        "margin: no such key; did you mean 'gate.margin'?",
    ),
    "a name in two sections, of which the config has one": (
        "name: x",
        "name: no such key; did you mean 'run.name'?",
    ),
    "a name of an optimizer's argument, and near to another key": (
        "weight_decay: 0.1",
        (
            "weight_decay: no such key; did you mean 'optimizer.init_args.weight_decay'? The"
            " optimizer needs a class, such as --optimizer=AdamW, and replaces the model's own"
        ),
    ),
    "a part of a name": (
        "data: {class_path: ImageFolder, init_args: {root: x}}\nsize: 3",
        (
            "size: no such key; did you mean 'data.init_args.cache_size' or"
            " 'data.init_args.image_size' or 'data.init_args.batch_size'?"
        ),
    ),
    "a part of a name of an optimizer that is not named": ("size: 3", "size: no such key"),
    "key of another command": ("return_predictions: true", "return_predictions: no such key"),
    "unknown argument of the trainer": (
        "trainer: {detect_anomally: true}",
        "trainer.detect_anomally: the trainer has no such argument; did you mean 'detect_anomaly'?",
    ),
    "argument of Lightning 1.x with another name": (
        "trainer: {checkpoint_callback: false}",
        "trainer.checkpoint_callback: the trainer has no such argument; Lightning 1.7 renamed it;"
        " write trainer.enable_checkpointing: false",
    ),
    "the same at the top": (
        "checkpoint_callback: false",
        "checkpoint_callback: no such key; Lightning 1.7 renamed it; write"
        " trainer.enable_checkpointing: false",
    ),
    "hardware of Lightning 1.x at the top": (
        "gpus: 2",
        "gpus: no such key; Lightning 2.0 takes a kind of device and a number; write"
        " trainer.accelerator: gpu, trainer.devices: 2",
    ),
    "argument of Lightning 1.x that is in several sections": (
        "trainer: {weights_summary: full}",
        "trainer.weights_summary: the trainer has no such argument; Lightning 1.7 renamed it; its"
        " depth is a callback's argument; write trainer.enable_model_summary: true,"
        " callbacks.model_summary.class_path: pytorch_lightning.callbacks.ModelSummary,"
        " callbacks.model_summary.init_args.max_depth: -1",
    ),
    "argument of Lightning 1.x without an effect": (
        "trainer: {flush_logs_every_n_steps: 10}",
        "trainer.flush_logs_every_n_steps: the trainer has no such argument; Lightning 1.7 dropped"
        " it; loggers flush by themselves; leave it out",
    ),
    "argument of Lightning 1.x without an equivalent": (
        "trainer: {amp_level: O2}",
        "trainer.amp_level: the trainer has no such argument; Lightning 2.0 dropped NVIDIA Apex;"
        " say precision: 16-mixed, which is torch's own, and leave it out",
    ),
    "argument of Lightning 1.x beside today's": (
        "trainer: {replace_sampler_ddp: false, use_distributed_sampler: true}",
        "trainer.replace_sampler_ddp: the trainer has no such argument; Lightning 2.0 renamed it;"
        " contradicts trainer.use_distributed_sampler: true; say one of them",
    ),
    "appending to what is no list": (
        "trainer: {max_steps+: 3}",
        "trainer.max_steps+: the trainer has no such argument; max_steps takes no list",
    ),
    "appending to an argument of a class that is no list": (
        "optimizer: {class_path: Adam, init_args: {lr+: 3}}",
        "optimizer.init_args.lr+: Adam has no such argument; lr takes no list",
    ),
    "wrong type": (
        "trainer: {max_epochs: ten}",
        "trainer.max_epochs: expected an integer or null, got 'ten'",
    ),
    "a word of few": (
        "trainer: {deterministic: wran}",
        (
            "trainer.deterministic: expected true or false, 'warn' or null, got 'wran'; did you"
            " mean 'warn'?"
        ),
    ),
    "a list where one value belongs": (
        "trainer: {log_every_n_steps: [3]}",
        "trainer.log_every_n_steps: expected an integer or null, got [3]",
    ),
    "a number out of its bounds where a class may stand, too": (
        "optimizer: {class_path: SGD, init_args: {lr: -1}}",
        "optimizer.init_args.lr: expected 0 or more or a Tensor, got -1",
    ),
    "a value that is none of its choices": (
        "model: {class_path: ImageClassifier, init_args: {backbone: resnet81}}",
        (
            "model.init_args.backbone: there is no backbone 'resnet81'; did you mean 'resnet18' or"
            " 'resnet152' or 'resnet101'?"
        ),
    ),
    "two arguments that exclude each other": (
        "data: {class_path: Table, init_args: {path: x, weight: w, mixup: 0.2}}",
        (
            "data.init_args.weight ('w') and data.init_args.mixup (0.2) exclude each other. Leave"
            " one of them out."
        ),
    ),
    "a list where a mapping belongs": (
        "trainer: [3]",
        "trainer: expected a mapping of the trainer's arguments, got [3]",
    ),
    "wrong type at the top": (
        "seed_everything: x",
        "seed_everything: expected true or false or an integer, got 'x'",
    ),
    "unknown argument of a class": (
        "callbacks: {early_stopping: {monitor: a, patiense: 3}}",
        (
            "callbacks.early_stopping.init_args.patiense: EarlyStopping has no such argument; did"
            " you mean 'patience'?"
        ),
    ),
    "wrong type in a class": (
        "data: {class_path: Flowers, init_args: {batch_size: [1]}}",
        "data.init_args.batch_size: expected an integer, got [1]",
    ),
    "wrong length": (
        "optimizer: {class_path: Adam, init_args: {betas: [1]}}",
        "optimizer.init_args.betas: expected a list of 2 numbers or Tensors, got [1]",
    ),
    "missing argument": (
        "lr_scheduler: StepLR",
        "lr_scheduler: StepLR needs step_size, an integer: Period of learning rate decay",
    ),
    "missing argument of a named entry": (
        "callbacks: {early_stopping: {}}",
        "callbacks.early_stopping: EarlyStopping needs monitor, text: quantity to be monitored",
    ),
    "null for a required argument": (
        "callbacks: {early_stopping: {monitor: null}}",
        "callbacks.early_stopping: EarlyStopping needs monitor, text: quantity to be monitored",
    ),
    "wrong base class": (
        "callbacks: {x: TensorBoardLogger}",
        "callbacks.x.class_path: TensorBoardLogger is not a Callback; it goes under logger",
    ),
    "wrong base class in a list": (
        "trainer: {callbacks: [{class_path: CSVLogger, init_args: {save_dir: x}}]}",
        "trainer.callbacks.0.class_path: CSVLogger is not a Callback; it goes under logger",
    ),
    "a model that is data": (
        "model: Flowers",
        "model.class_path: Flowers is not a LightningModule; it goes under data",
    ),
    "a base class": (
        "trainer: {logger: Logger}",
        (
            "trainer.logger: Logger is a base class, which cannot be used by itself; name a class"
            " that derives from it"
        ),
    ),
    "a class that its module has not": (
        "callbacks: {x: pytorch_lightning.callbacks.EarlyStoping}",
        (
            "callbacks.x.class_path: pytorch_lightning.callbacks has no class 'EarlyStoping'; "
            "did you mean 'EarlyStopping'?"
        ),
    ),
    "a short name of nothing": (
        "model: ImageClasifier",
        (
            "model.class_path: no class 'ImageClasifier'; did you mean 'ImageClassifier' or"
            " 'TextClassifier'?; a class of your own is named with its module:"
            " my_models.ImageClasifier"
        ),
    ),
    "the name of an entry": (
        "callbacks: {slack: {class_path: slack}}",
        (
            "callbacks.slack.class_path: no class 'slack'; did you mean 'SlackNotifier'?; "
            "a class of your own is named with its module: my_models.slack"
        ),
    ),
    "init_args that are none": (
        "callbacks: {x: {class_path: my.Own, init_args: [1]}}",
        "callbacks.x.init_args: expected a mapping of Own's arguments, got [1]",
    ),
    "an argument beside class_path in a list": (
        "trainer: {callbacks: [{class_path: Timer, interval: step}]}",
        "trainer.callbacks.0.interval: stands next to class_path; put it under init_args",
    ),
    "a number for a class": ("model: 3", "model: expected a LightningModule, got 3"),
    "a class's name that is none": (
        "model: {class_path: 3}",
        "model.class_path: expected the name of a class, got 3",
    ),
    "another value in a list of classes": (
        "trainer: {callbacks: [3]}",
        "trainer.callbacks.0: expected a Callback, got 3",
    ),
    "a key that is no text": ("5: 6", "5: expected a name for a key, got 5"),
    "a switch for a key": ("true: 3", "True: expected a name for a key, got true"),
    "a key of the trainer that is no text": (
        "trainer: {3: 4}",
        "trainer.3: expected a name for a key, got 3",
    ),
    "an argument that is no text": (
        "data: {class_path: Flowers, init_args: {3: 4}}",
        "data.init_args.3: expected a name for a key, got 3",
    ),
    "an argument of a class of one's own that is no text": (
        "model: {class_path: mine.Net, dict_kwargs: {5: 1}}",
        "model.dict_kwargs.5: expected a name for a key, got 5",
    ),
    "a strategy that is none": (
        "trainer: {strategy: dddp}",
        "trainer.strategy: there is no strategy 'dddp'; did you mean 'ddp'?",
    ),
    "a strategy of the block": (
        "accelerator: {strategy: horovodd}",
        "accelerator.strategy: there is no strategy 'horovodd'; did you mean 'horovod'?",
    ),
    "a profiler that is none": (
        "trainer: {profiler: simpel}",
        (
            "trainer.profiler: expected 'simple', 'advanced', 'pytorch', 'xla', a Profiler or null,"
            " got 'simpel'; did you mean 'simple'?"
        ),
    ),
    "a word that is near to none": (
        "trainer: {profiler: qqq}",
        (
            "trainer.profiler: expected 'simple', 'advanced', 'pytorch', 'xla',"
            " a Profiler or null, got 'qqq'"
        ),
    ),
    "run": ("run: {nmae: x}", "run.nmae: there is no such argument; did you mean 'name'?"),
}


@pytest.mark.parametrize(("text", "says"), WRONG.values(), ids=WRONG.keys())
def test_an_error_is_reported_in_plain_words(tmp_path: Path, text: str, says: str) -> None:
    assert messages_of(findings_in(tmp_path, text)) == [says]


RIGHT = {
    "numbers as text": "trainer: {max_epochs: '3', limit_val_batches: '0.5', inference_mode: 'no'}",
    "null for an argument that has a default": (
        "trainer: {max_steps: }\ndata: {class_path: Flowers, batch_size: }"
    ),
    "hardware in any words": "trainer: {tpu_cores: x, devices: {}}\naccelerator: 7",
    "other names of a class": "optimizer: torch.optim.sgd.SGD",
    "one callback that is no list": "trainer: {callbacks: {class_path: Timer}}",
    "switches for loggers": "trainer: {logger: false}",
    "an appended callback": "trainer: {callbacks+: Timer}",
    "a word for a profiler": "trainer: {profiler: simple}",
    "a removed entry": "callbacks: {early_stopping: null}",
    "arguments that are passed on": "optimizer: {class_path: SGD, dict_kwargs: {more: 3}}",
    "an optimizer's own learning rate": (
        "optimizer: {class_path: Adam, init_args: {lr: '1e-3', betas: [0.9, '0.99']}}"
    ),
    "a dataclass as a mapping": (
        "callbacks: {x: {class_path: RichProgressBar, theme: {description: green_yellow}}}"
    ),
    "a dataclass as a class": (
        "callbacks: {x: {class_path: RichProgressBar, theme: {class_path: Any, init_args: {}}}}"
    ),
    "a strategy in capitals": "trainer: {strategy: DDP_spawn}",
    "a strategy of the block in capitals": "accelerator: {strategy: Horovod}",
    "a strategy's class": "trainer: {strategy: DDPStrategy}",
    "an old strategy": "trainer: {strategy: ddp_cpu, profiler: SimpleProfiler}",
    "numbers for keys of a value": (
        "callbacks: {x: {class_path: GradientAccumulationScheduler,"
        " init_args: {scheduling: {4: 2}}}}"
    ),
    "the plateau's metric": (
        "lr_scheduler: {class_path: ReduceLROnPlateau, init_args: {monitor: val/loss}}"
    ),
}


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT.keys())
def test_what_jsonargparse_takes_is_no_error(tmp_path: Path, text: str) -> None:
    findings = findings_in(tmp_path, text)
    assert messages_of(findings) == []
    assert findings.undescribed == set()


def test_what_was_left_out_because_it_was_wrong_is_not_missing(tmp_path: Path) -> None:
    resolved = resolved_from(
        tmp_path, "callbacks: {early_stopping: {monitor: [1]}, lr: {class_path: EarlyStopping}}"
    )
    left = drop_paths(resolved, [("callbacks", "early_stopping", "init_args", "monitor")])
    catalogue = load_schema()
    findings = validate_values(left, catalogue)
    assert [path for path, _ in findings.problems] == [("callbacks", "lr")]


def test_a_number_that_jsonargparse_takes_is_held_against_its_bounds(tmp_path: Path) -> None:
    width = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}
    described = ClassDescription(
        path="mine.Net", arguments={"width": Argument(width), "depth": Argument({"type": "number"})}
    )
    resolved = resolved_from(tmp_path, "model: {class_path: mine.Net, init_args: {width: 0}}")
    for number, said in (
        (0, ["model.init_args.width: expected 1 or more or null, got 0"]),
        (1, []),
    ):
        given = {"width": number, "depth": -1.5}
        refused = find_refused_numbers(described, given, ("model", "init_args"), resolved)
        assert [str(error).splitlines()[0] for _, error in refused] == said


def test_a_long_value_is_shortened(tmp_path: Path) -> None:
    long = "9" * 5000
    text = (
        f"trainer: {{max_epochs: 'x{long}', min_epochs: [{long}a], deterministic:"
        f" [x{long}]}}\ndata: [{long}b]"
    )
    messages = messages_of(findings_in(tmp_path, text))
    assert len(messages) == 4
    assert max(map(len, messages)) < 400


def test_a_strategy_that_an_own_module_may_register_is_no_error(tmp_path: Path) -> None:
    assert messages_of(findings_in(tmp_path, "model: mine.Net\ntrainer: {strategy: dddp}")) == []


def test_an_error_shows_its_key_or_its_value(tmp_path: Path) -> None:
    findings = findings_in(tmp_path, "trainer:\n  max_epoch: ten\n  min_epochs: ten\n")
    key, value = [str(problem) for _, problem in findings.problems]
    assert key.endswith("    2 |   max_epoch: ten\n      |   ^^^^^^^^^")
    assert value.endswith("    3 |   min_epochs: ten\n      |               ^^^")


def test_an_argument_of_the_class_that_was_replaced_is_reported_as_such(tmp_path: Path) -> None:
    base = "optimizer: {class_path: Adam, init_args: {lr: 0.1}}"
    upper = "optimizer: {class_path: SGD}"
    findings = findings_in(tmp_path, base, upper, flags=("optimizer.init_args.betas=[0.9, 0.99]",))
    says = (
        "optimizer.init_args.betas: SGD has no such argument; it is one"
        " of Adam, which SGD has replaced"
    )
    assert messages_of(findings) == [says]
    assert "1.yaml:1:" in str(findings.problems[0][1])


def test_a_class_of_ones_own_is_left_to_who_can_import_it(tmp_path: Path) -> None:
    findings = findings_in(
        tmp_path,
        "model: {class_path: mine.Net, init_args: {x: 3}}\ncallbacks: {a: {class_path: Mine}}",
    )
    assert messages_of(findings) == []
    assert findings.undescribed == {"mine.Net", "Mine"}


def test_a_file_whose_name_could_be_a_class_needs_no_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "data: {class_path: TableData, init_args: {path: rows.csv, target: y}}"
    assert not findings_in(tmp_path, text).is_final
    (tmp_path / "rows.csv").write_text("a,y\n1,2\n", encoding="utf-8")
    findings = findings_in(tmp_path, text)
    assert findings.is_final
    assert messages_of(findings) == []


def test_of_an_interpolation_that_failed_nothing_is_said(tmp_path: Path) -> None:
    resolved = resolved_from(
        tmp_path, "trainer: {max_epochs: ten}\nmodel: {class_path: Nope, init_args: {a: 3}}"
    )
    unresolved = frozenset({("trainer", "max_epochs"), ("model", "class_path")})
    findings = validate_values(replace(resolved, unresolved=unresolved), load_schema())
    assert findings.problems == []


@pytest.mark.parametrize(
    ("versions", "num_problems"),
    [
        ({}, 3),
        ({"torch": "2.9.0"}, 2),
        ({"pytorch-lightning": "2.7.0"}, 1),
        ({"jsonargparse": "4.50.0"}, 0),
        ({"torch": RECORDED["torch"] + "+cpu"}, 3),
    ],
    ids=[
        "all as recorded",
        "other torch",
        "other Lightning",
        "other jsonargparse",
        "another build",
    ],
)
def test_a_package_of_another_version_is_not_judged(
    tmp_path: Path, versions: dict[str, str], num_problems: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "trainer: {max_epochs: x}\noptimizer: {class_path: SGD, init_args: {lr2: 3}}\ndata:"
        " {class_path: Flowers, x: 3}"
    )
    resolved = resolved_from(tmp_path, text)
    monkeypatch.setattr("importlib.metadata.version", {**RECORDED, **versions}.__getitem__)
    findings = validate_values(resolved, ConfigSchema(load_schema().data))
    assert len(findings.problems) == num_problems


@pytest.mark.parametrize(
    "file", sorted(CONFIGS.rglob("*.yaml")), ids=lambda file: file.relative_to(CONFIGS).as_posix()
)
def test_no_shipped_config_has_an_error(file: Path) -> None:
    environ = dict.fromkeys(
        ("SLACK_WEBHOOK_URL", "WEBHOOK_URL", "HEARTBEAT_URL"), "https://hooks.example.com/night"
    )
    resolved = resolve([file], environ=environ, subcommand="fit", subcommands=STAGES)
    assert messages_of(validate_values(replace(resolved, is_incomplete=True), load_schema())) == []
