"""What only Lightning, torch or a file can tell is wrong.

It is told in words, too, and leaves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.contract.batch import Answer, Command, run_batch
from tests.contract.examples import MY_PROJECT, SMALL
from tests.contract.workspace import ForkServer, Workspace

REFUSED: dict[str, tuple[list[str], str]] = {
    "devices": (["--trainer.devices=-5"], r"trainer\.devices: .*'-5'\n  --> --trainer\.devices=-5"),
    "epochs": (
        ["--trainer.max_epochs=-7"],
        r"trainer\.max_epochs: .*'-7'\n  --> --trainer\.max_epochs=-7",
    ),
    "argument of a callback": (
        ["callbacks.early_stopping.monitor=val/loss", "callbacks.early_stopping.mode=up"],
        (
            r"callbacks\.early_stopping\.init_args\.mode: .*min, max.*up\n  -->"
            r" callbacks\.early_stopping\.mode=up"
        ),
    ),
    "fewer batches than one": (
        ["--trainer.limit_train_batches=0.1"],
        r"trainer\.limit_train_batches: .*0\.1.*\n  --> --trainer\.limit_train_batches=0\.1",
    ),
    "no last checkpoint": (["--ckpt_path", "last"], r"--ckpt_path last: no run of 'small'"),
    "a file that is no checkpoint": (
        ["--ckpt_path=my_project.py"],
        r"--ckpt_path: my_project\.py is not a valid checkpoint: it begins with .*; expected",
    ),
    "a GPU that is not there": (
        ["--trainer.accelerator=gpu"],
        r"trainer\.accelerator: .*no GPU.*\n  --> --trainer\.accelerator=gpu",
    ),
    "a package that is not installed": (
        ["--trainer.precision=transformer-engine"],
        r".*transformer_engine",
    ),
}


@pytest.fixture(scope="module")
def refused(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[dict[str, Answer]]:
    """What fits say that cannot begin."""
    workspace = Workspace(tmp_path_factory.mktemp("refused") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("small.yaml", SMALL)
    words = {
        name: Command(("fit", "-c", "small.yaml", *given)) for name, (given, _) in REFUSED.items()
    }
    answers = run_batch(workspace, words)
    assert workspace.runs == []
    yield answers
    workspace.close()


@pytest.mark.parametrize("name", REFUSED)
def test_what_lightning_refuses_is_reported_with_its_place_and_leaves_no_run(
    name: str, refused: dict[str, Answer]
) -> None:
    assert refused[name].code == 2
    assert re.search(rf"^error: {REFUSED[name][1]}", refused[name].err, re.MULTILINE), refused[
        name
    ].err
    assert "Traceback" not in refused[name].err


def test_a_checkpoint_of_another_model_is_reported(finished: Workspace) -> None:
    run = finished.only_run
    words = ("-c", "small.yaml", f"--ckpt_path={run}/checkpoints/last.ckpt", "--model.hidden=9")
    answers = run_batch(finished, {stage: Command((stage, *words)) for stage in ("fit", "test")})
    assert {stage: answer.code for stage, answer in answers.items()} == {"fit": 2, "test": 2}
    says = [
        re.search(r"error: the checkpoint does not fit the model: .*size mismatch", a.err)
        for a in answers.values()
    ]
    assert None not in says
    assert finished.runs == [run]


LIST = "path\npictures/a.png\n"
REPLACING = {
    "by default": ("predictions.csv", ()),
    "in another spelling": ("./list.csv", ("--output", "list.csv")),
    "read through a link": ("link.csv", ("--output=list.csv",)),
    "written through a link": ("list.csv", ("--output=link.csv",)),
    "by a pattern": ("pred*.csv", ()),
}


@pytest.fixture(scope="module")
def replacing(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[tuple[Workspace, dict[str, Answer]]]:
    """What predictions say whose table would replace the list of images that they are for."""
    workspace = Workspace(tmp_path_factory.mktemp("replacing") / "work", fork_server)
    for name in ("predictions.csv", "list.csv"):
        workspace.write(name, LIST)
    workspace.write("model.onnx", "opening this would be another error")
    (workspace.folder / "link.csv").symlink_to("list.csv")
    commands = {
        name: Command(("predict", "--model", "model.onnx", images, *output))
        for name, (images, output) in REPLACING.items()
    }
    words = (
        "predict",
        "--model",
        "model.onnx",
        "gone",
        "--output=new/t.csv",
        "--contact-sheet=more/s.html",
    )
    yield workspace, run_batch(workspace, {**commands, "no images": Command(words)}, cold=True)
    workspace.close()


@pytest.mark.parametrize("name", REPLACING)
def test_a_list_of_images_is_not_replaced_by_its_predictions(
    name: str, replacing: tuple[Workspace, dict[str, Answer]]
) -> None:
    workspace, answers = replacing
    assert answers[name].code == 2, answers[name].err
    assert re.match(r"error: .*would replace", answers[name].err)
    assert {
        (workspace.folder / each).read_text(encoding="utf-8")
        for each in ("list.csv", "predictions.csv")
    } == {LIST}


def test_no_folder_is_made_where_there_are_no_images(
    replacing: tuple[Workspace, dict[str, Answer]],
) -> None:
    workspace, answers = replacing
    assert answers["no images"].code == 3
    assert not {"new", "more"} & {path.name for path in workspace.folder.iterdir()}
