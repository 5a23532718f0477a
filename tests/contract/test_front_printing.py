"""`--print_config` prints what can be fed back: layers, flags and variables drawn at random."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.contract.batch import Answer, Command, run_batch
from tests.contract.workspace import Workspace

SECRET = "sesame-1234"
TEXTS = [
    "net",
    "${oc.env:GIVEN}",
    "x-${oc.env:GIVEN}",
    "${oc.env:ABSENT,spare}",
    r"\${literal}",
    "1e3",
    "yes",
    "",
    "a: b",
]
TEXTS += ["7e2", "0x1f", "1_000", "null", "1:30"]
TAGS = [[], ["a"], ["b", "${oc.env:GIVEN}"]]
TIMER = {"class_path": "pytorch_lightning.callbacks.Timer", "init_args": {"interval": "step"}}
NET: dict[str, list[Any]] = {"hidden": [2, 8, "${trainer.max_epochs}"], "name": TEXTS, "tags": TAGS}
BASE = {
    "seed_everything": 7,
    "model": "my_project.Net",
    "data": {"class_path": "my_project.Points"},
    "trainer": {"max_epochs": 3},
}
SECTIONS: dict[str, dict[str, list[Any]]] = {
    "trainer": {
        "max_epochs": [1, 5],
        "gradient_clip_val": [None, 1, 0.5, 1e-7],
        "limit_train_batches": [2, 0.5, 1.0],
        "benchmark": [True, False],
        "profiler": [None, "simple"],
        "max_time": [None, "00:12:00:00", {"hours": 2}],
        "callbacks": [None, [TIMER]],
        "callbacks+": [[TIMER]],
    },
    "callbacks": {
        "early_stopping": [
            None,
            {"monitor": "val/loss", "patience": 2},
            {"monitor": "val/loss", "mode": "min"},
        ],
        "lr_monitor": [None, {}, {"logging_interval": "step"}],
        "mine": [None, TIMER],
        "checkpoint": [None, {}],
    },
    "logger": {"csv": [None, {}, {"prefix": "1e3"}], "tensorboard": [None, {}]},
    "run": {"name": ["job"], "resume": ["never"]},
}
WHOLE: dict[str, list[Any]] = {
    "accelerator": [
        "cpu",
        {"num_processes": 2},
        {"precision": "bf16"},
        {"strategy": "ddp"},
        {"memory_format": "channels_last", "threads": 2},
        {"gpus": 0},
    ],
    "optimizer": [
        "Adam",
        {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1}},
        {"class_path": "SGD", "init_args": {"lr": 1}},
    ],
    "data": [
        {"class_path": "my_project.Points", "init_args": {"count": 8, "note": "${oc.env:GIVEN}"}}
    ],
    "seed_everything": [3, False],
}
FLAGS = [
    "--trainer.max_epochs=4",
    "trainer.limit_val_batches=0.5",
    "--model.init_args.name=123",
    "--callbacks.mine=pytorch_lightning.callbacks.Timer",
    "--callbacks.lr_monitor=null",
    "--callbacks.early_stopping={monitor: val/loss, patience: 2}",
    "--model.tags+=c",
    "--logger.csv={}",
    "--trainer.accelerator=cpu",
    "--optimizer=SGD",
    "--model={init_args: {name: flagged}}",
    "--trainer.gradient_clip_val=1e-3",
    "--trainer.logger=false",
]
VARIABLES = {
    "LIGHTKIT_TRAINER__MAX_EPOCHS": "2",
    "LIGHTKIT_TRAINER__LOG_EVERY_N_STEPS": "1",
    "LIGHTKIT_CALLBACKS__LR_MONITOR__LOGGING_INTERVAL": "epoch",
    "LIGHTKIT_DATA__BATCH_SIZE": "2",
}


def draw_layer(draw: random.Random) -> dict[str, Any]:
    """A layer with any of the keys and values above."""
    layer: dict[str, Any] = {
        key: draw.choice(values) for key, values in WHOLE.items() if draw.random() < 0.3
    }
    for section, keys in SECTIONS.items():
        chosen = {key: draw.choice(values) for key, values in keys.items() if draw.random() < 0.3}
        if "callbacks" in chosen:
            chosen.pop("callbacks+", None)
        if chosen:
            layer[section] = chosen
    if draw.random() < 0.6:
        arguments = {
            name: draw.choice(values) for name, values in NET.items() if draw.random() < 0.6
        }
        layer["model"] = {
            "class_path": draw.choice(["my_project.Net", "${oc.env:CLASS}"]),
            "init_args": arguments,
        }
    return layer


def print_and_feed_back(workspace: Workspace, seeds: range) -> dict[str, tuple[Answer, Answer]]:
    """What drawn command lines print, and what is printed when that is fed back.

    Without those that are refused.
    """
    commands, again = {}, {}
    for seed in map(str, seeds):
        draw = random.Random(seed)
        workspace.write(f"{seed}/base.yaml", BASE)
        workspace.write(f"{seed}/one.yaml", {"extends": "base", **draw_layer(draw)})
        workspace.write(f"{seed}/two.yaml", draw_layer(draw))
        files = ("-c", f"{seed}/one.yaml", "-c", f"{seed}/two.yaml")
        flags = draw.sample(FLAGS, draw.randint(0, 3))
        environ = {"GIVEN": SECRET, "CLASS": "my_project.Net"}
        environ |= {name: value for name, value in VARIABLES.items() if draw.random() < 0.3}
        commands[seed] = Command(("fit", *files, *flags, "--print_config"), environ=environ)
    printed = {
        seed: answer for seed, answer in run_batch(workspace, commands).items() if answer.code != 2
    }
    for seed, answer in printed.items():
        workspace.write(f"{seed}.yaml", answer.ok().out)
        environ = {"GIVEN": SECRET, "CLASS": "my_project.Net"}
        again[seed] = Command(("fit", "-c", f"{seed}.yaml", "--print_config"), environ=environ)
    return {seed: (printed[seed], answer) for seed, answer in run_batch(workspace, again).items()}


def assert_the_same(found: dict[str, tuple[Answer, Answer]]) -> None:
    """Each was printed twice in the same words, without the secret."""
    differing = {
        seed: (one.out, other.err, other.out)
        for seed, (one, other) in found.items()
        if one.out != other.out
    }
    assert differing == {}
    assert [seed for seed, (one, _) in found.items() if SECRET in one.out + one.err] == []


def test_a_printed_config_fed_back_is_the_same_config(workspace: Workspace) -> None:
    found = print_and_feed_back(workspace, range(6))
    assert len(found) >= 4  # others have layers that contradict each other
    assert_the_same(found)


@pytest.mark.long
def test_many_printed_configs_fed_back_are_the_same(workspace: Workspace) -> None:
    found = print_and_feed_back(workspace, range(6, 66))
    assert len(found) >= 30
    assert_the_same(found)
