"""Which run and which checkpoint a fit goes on from, and what is said about it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.conftest import Once, copy_of
from tests.contract.examples import MY_PROJECT, SMALL
from tests.contract.fault_examples import HOLD, MY_FAULTS, kill_once_saved
from tests.contract.workspace import (
    ForkServer,
    Workspace,
    assert_same_training,
    load_checkpoint,
    read_events,
    read_json,
    read_metrics,
)

WORDS = ("fit", "-c", "job.yaml", HOLD)
JOB = {
    **SMALL,
    "model": {"class_path": "my_project.Net", "init_args": {"name": "${oc.env:NET_NAME,net}"}},
    "data": {"class_path": "my_faults.Described"},
    "trainer": {**SMALL["trainer"], "max_epochs": 3},
}


def _write_job(workspace: Workspace) -> None:
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("my_faults.py", MY_FAULTS)
    workspace.write("job.yaml", JOB)
    workspace.write("data.txt", "one")


def _kill(workspace: Workspace) -> None:
    _write_job(workspace)
    kill_once_saved(workspace, "-c", "job.yaml", step=15, saved=12)


@pytest.fixture(scope="module")
def killed_original(made_once: Once) -> Path:
    """Original of `killed`."""
    return made_once("killed", _kill)


@pytest.fixture
def killed(killed_original: Path, workspace: Workspace) -> Workspace:
    """A run that was killed in step 15 of 18 and has checkpoints of steps 6 and 12.

    `WORDS` resume it.
    """
    return copy_of(killed_original, workspace)


def resumed_step(run: Path) -> tuple[int, str]:
    (event,) = read_events(run, "resume")
    return event["step"], Path(event["checkpoint"]).name


# -- the same command ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Path]:
    """Run folder of the same job that nobody disturbed."""
    workspace = Workspace(tmp_path_factory.mktemp("undisturbed") / "work", fork_server)
    _write_job(workspace)
    yield workspace.fit("-c", "job.yaml")
    workspace.close()


def test_the_same_command_goes_on_in_the_same_run_folder_and_says_so(
    killed: Workspace, undisturbed: Path
) -> None:
    result = killed.run(*WORDS).ok()
    run = killed.only_run
    assert re.search(rf"resumes .*{run.name} from last\.ckpt", result.err)
    assert resumed_step(run) == (12, "last.ckpt")
    assert read_json(run / "summary.json")["status"] == "done"
    assert_same_training(run, undisturbed)


def test_a_run_that_ended_well_is_not_resumed(finished: Workspace) -> None:
    finished.run("fit", "-c", "small.yaml").ok()
    assert len(finished.runs) == 2
    assert not read_events(finished.runs[-1], "resume")


def test_a_run_that_was_interrupted_after_the_clock_was_set_back_goes_on(
    finished: Workspace,
) -> None:
    before = finished.only_run
    before.rename(before.with_name("2999" + before.name[4:]))
    sender = {
        "class_path": "my_project.SendSignal",
        "init_args": {"hook": "on_train_batch_start", "step": 9},
    }
    finished.write("signal.yaml", {"callbacks": {"sender": sender}, "run": {"name": "small"}})
    words = ("fit", "-c", "small.yaml", "-c", "signal.yaml")
    interrupted = finished.run(*words)
    assert interrupted.code == 75, interrupted.err
    newest = finished.runs[-1]
    result = finished.run(*words).ok()
    assert re.search(rf"resumes .*{newest.name} from last\.ckpt", result.err)
    assert finished.runs[-1] == newest
    assert len(finished.runs) == 2


@pytest.mark.parametrize(
    ("words", "environ", "data", "says"),
    [
        (
            ["--model.hidden=5"],
            {},
            "one",
            r"another config \(model\.init_args\.hidden\).*--run\.resume=\S+",
        ),
        ([], {"NET_NAME": "other"}, "one", r"environment"),
        ([], {}, "other", r"data has changed"),
        (["--run.resume=never"], {}, "one", ""),
    ],
    ids=["config", "environment", "data", "never"],
)
def test_another_config_environment_or_data_or_never_begins_a_new_run_and_says_why(
    words: list[str], environ: dict[str, str], data: str, says: str, killed: Workspace
) -> None:
    killed.write("data.txt", data)
    result = killed.run(*WORDS, *words, environ=environ).ok()
    old, new = killed.runs
    assert not read_events(old, "resume")
    assert [row["epoch"] for row in read_metrics(new)] == ["0", "1", "2"]
    assert re.search(says, result.err)
    assert not says or old.name in result.err


def test_what_says_when_to_wait_or_give_up_or_promote_is_no_other_config(killed: Workspace) -> None:
    gate = ("--gate.metric=val/loss", "--gate.max=9", "--gate.mode=min")
    killed.run(*WORDS, "--run.wait_s=1", "--run.stale_s=400", "--watchdog.factor=30", *gate).ok()
    assert resumed_step(killed.only_run) == (12, "last.ckpt")


@pytest.mark.parametrize(
    "word",
    [
        "--launch.timeout_s=99",
        "--logger.csv={}",
        "--trainer.enable_progress_bar=false",
        "--run.root=./runs",
    ],
)
def test_a_key_that_can_change_no_weight_is_no_other_config(word: str, killed: Workspace) -> None:
    killed.run(*WORDS, word).ok()
    assert resumed_step(killed.only_run) == (12, "last.ckpt")


def test_other_values_that_auto_takes_on_other_hardware_are_no_other_config(
    killed: Workspace,
) -> None:
    variables = {"OMP_NUM_THREADS": None, "MKL_NUM_THREADS": None}
    config = killed.only_run / "config.yaml"
    of_a_gpu, num_replaced = re.subn(
        r"precision: null", "precision: 16-mixed", config.read_text(encoding="utf-8")
    )
    assert num_replaced == 1
    config.write_text(of_a_gpu, encoding="utf-8")
    words = (
        "--accelerator.threads=auto",
        "--accelerator.memory_format=auto",
        "--accelerator.precision=auto",
    )
    result = killed.run(*WORDS, *words, environ=variables).ok()
    assert resumed_step(killed.only_run) == (12, "last.ckpt")
    # it names what differs, and records what this machine has chosen, and why
    assert re.search(
        r"auto chooses otherwise on this machine: .*trainer\.precision \S+ \(was 16-mixed\)",
        result.err,
    )
    chosen = read_json(killed.only_run / "manifest.json")["auto"]
    assert chosen["by"].startswith("CPU with")
    assert chosen["values"]["trainer.precision"] in ("32-true", "bf16-mixed")


def test_a_fast_dev_run_in_between_leaves_the_interrupted_run_to_be_resumed(
    killed: Workspace,
) -> None:
    killed.run(*WORDS, "--trainer.fast_dev_run=true").ok()
    killed.run(*WORDS).ok()
    assert resumed_step(killed.runs[0]) == (12, "last.ckpt")


def test_a_path_goes_on_in_that_run_with_another_config(killed: Workspace) -> None:
    result = killed.run(*WORDS, "--run.resume=runs/job/latest", "--trainer.max_epochs=4").ok()
    run = killed.only_run
    assert [row["epoch"] for row in read_metrics(run)] == ["0", "1", "2", "3"]
    assert "from last.ckpt; with this config: trainer.max_epochs 4 (was 3)\n" in result.err
    assert "max_epochs: 4" in (run / "config.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", ["latest", "job", "ID"])
def test_run_resume_names_a_run_as_run_does(form: str, killed: Workspace) -> None:
    run = killed.only_run
    killed.run("fit", "-c", "small.yaml").ok()  # a newer run, of another job
    form = form.replace("ID", run.name)
    killed.run(*WORDS, f"--run.resume={form}", "--trainer.max_epochs=4").ok()
    assert [row["epoch"] for row in read_metrics(run)] == ["0", "1", "2", "3"]


def test_a_copy_under_a_name_that_is_no_id_is_tested_and_no_training_goes_on_in_it(
    killed: Workspace,
) -> None:
    run = killed.only_run
    copy = run.with_name(f"{run.name}-copy")
    shutil.copytree(run, copy)
    before = sorted((path.relative_to(copy), path.stat().st_mtime_ns) for path in copy.rglob("*"))
    for command in ("check", "fit"):
        result = killed.run(command, *WORDS[1:], f"--run.resume=runs/job/{copy.name}")
        assert result.code == 2
        assert "has no run's id as its name, such as 20261120-113859-3fa1" in result.err
        assert f"--ckpt_path={copy}/checkpoints/last.ckpt" in result.err
    after = sorted((path.relative_to(copy), path.stat().st_mtime_ns) for path in copy.rglob("*"))
    assert after == before

    killed.run("test", "--run", f"runs/job/{copy.name}").ok()
    killed.run(*WORDS, f"--ckpt_path={copy}/checkpoints/last.ckpt", "--run.resume=never").ok()
    begun = next(other for other in killed.runs if other not in (run, copy))
    assert [row["epoch"] for row in read_metrics(begun)] == ["2"]  # steps 12 to 18 of 18


# -- damaged checkpoints ---------------------------------------------------------------------------


def _replace(path: Path, content: bytes) -> None:
    """Write a file that is no other name of the one before, as a copy that went wrong does."""
    path.unlink()
    path.write_bytes(content)


def _truncate(path: Path) -> None:
    _replace(path, path.read_bytes()[:-100])


def _flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    _replace(path, bytes(content))


def _empty(path: Path) -> None:
    _replace(path, b"")


def _truncate_both_names(path: Path) -> None:
    best = path.with_name("best.ckpt")
    best.unlink()
    best.hardlink_to(path)  # as the fit has left it, before the run was copied for this test
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    "damage",
    [_truncate, _flip_a_bit, _empty],
    ids=["truncated", "bit_flipped", "empty"],
)
def test_a_damaged_checkpoint_is_passed_over_for_the_next_newest(
    damage: Callable[[Path], None], killed: Workspace, undisturbed: Path
) -> None:
    last = killed.only_run / "checkpoints" / "last.ckpt"
    damage(last)
    result = killed.run(*WORDS).ok()
    assert re.search(r"last\.ckpt is not used", result.err)
    (fallback,) = read_events(killed.only_run, "fallback")
    assert (fallback["path"], fallback["used"]) == (
        "checkpoints/last.ckpt",
        "checkpoints/best.ckpt",
    )
    assert resumed_step(killed.only_run) == (12, "best.ckpt")
    assert_same_training(killed.only_run, undisturbed)


@pytest.mark.parametrize("is_one_file", [True, False], ids=["one file of two names", "two files"])
def test_the_checkpoint_before_the_last_is_used_where_both_newer_ones_are_damaged(
    is_one_file: bool, killed: Workspace, undisturbed: Path
) -> None:
    last = killed.only_run / "checkpoints" / "last.ckpt"
    if is_one_file:
        _truncate_both_names(last)
    else:
        _truncate(last)
        _truncate(last.with_name("best.ckpt"))
    killed.run(*WORDS).ok()
    assert resumed_step(killed.only_run) == (6, "last-1.ckpt")
    assert_same_training(killed.only_run, undisturbed)


def test_a_folder_in_the_place_of_a_checkpoint_is_not_replaced(killed: Workspace) -> None:
    last = killed.only_run / "checkpoints" / "last.ckpt"
    last.unlink()
    last.mkdir()
    result = killed.run(*WORDS)
    assert result.code == 1
    assert resumed_step(killed.only_run) == (12, "best.ckpt")
    assert re.search(r"error: .*last\.ckpt cannot be written: .*Is a directory", result.err)


def test_where_all_checkpoints_are_damaged_the_run_begins_again(
    killed: Workspace, undisturbed: Path
) -> None:
    for path in (killed.only_run / "checkpoints").glob("*.ckpt"):
        _flip_a_bit(path)
    result = killed.run(*WORDS).ok()
    assert re.search(r"resumes \S+ from the start.*last\.ckpt is not used", result.err)
    assert_same_training(killed.only_run, undisturbed)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("fit", "-c", "small.yaml", "--ckpt_path=last"), "last.ckpt"),
        (("validate", "--run", "latest"), "best.ckpt"),
    ],
    ids=["fit", "validate"],
)
def test_a_damaged_checkpoint_that_is_named_is_an_error(
    words: tuple[str, ...], name: str, finished: Workspace
) -> None:
    _flip_a_bit(finished.only_run / "checkpoints" / name)
    result = finished.run(*words)
    assert result.code == 2
    assert re.search(rf"{re.escape(name)} is not what was written: its digest differs", result.err)
    assert len(finished.runs) == 1


# -- checkpoints and runs by name ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--run.resume=runs/small/latest"], r"run\.resume: \S+ has no checkpoint to resume from"),
        (["--run.resume=nowhere"], r"run\.resume: .*nowhere"),
        (["--run.resume=latest", "--run.name=other"], r"run\.resume: .*no run 'latest' of 'other'"),
        (["--ckpt_path=last"], r"ckpt_path.*last: no run of 'small' in \S*runs has a checkpoint"),
        (["--ckpt_path=nowhere.ckpt"], r"ckpt_path: nowhere\.ckpt is not a file"),
        (["--ckpt_path=runs"], r"ckpt_path: runs is a folder"),
    ],
    ids=["run_without_checkpoint", "no_run", "no_latest", "last", "no_file", "folder"],
)
def test_nothing_to_resume_from_is_an_error(
    words: list[str], says: str, finished: Workspace
) -> None:
    shutil.rmtree(finished.only_run / "checkpoints")
    result = finished.run("fit", "-c", "small.yaml", *words)
    assert result.code == 2
    assert re.search(says, result.err)
    assert result.out == ""
    assert len(finished.runs) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--ckpt_path=last"],
        ["--ckpt_path=best"],
        ["--ckpt_path=runs/small/latest/checkpoints/last.ckpt"],
        ["-c", "from.yaml", "--run.name=small"],
    ],
    ids=["last", "best", "path", "config"],
)
def test_ckpt_path_begins_a_new_run_where_the_old_one_ended(
    words: list[str], finished: Workspace
) -> None:
    finished.write("from.yaml", {"ckpt_path": "runs/small/latest/checkpoints/last.ckpt"})
    finished.run("fit", "-c", "small.yaml", "--trainer.max_epochs=3", *words).ok()
    old, new = finished.runs
    assert [row["epoch"] for row in read_metrics(new)] == ["2"]
    assert read_json(new / "manifest.json")["parent"].endswith(old.name)


@pytest.mark.parametrize(
    ("words", "done"),
    [
        (["--ckpt_path=last"], "2 of 2 epochs"),
        (["--ckpt_path=last", "--trainer.max_epochs=1"], "2 of 1 epochs"),
        (
            ["--ckpt_path=last", "--trainer.max_epochs=3", "--trainer.max_steps=12"],
            "12 of 12 steps",
        ),
    ],
    ids=["epochs", "fewer epochs", "steps"],
)
def test_ckpt_path_with_nothing_left_to_train_says_so_and_leaves_no_run(
    words: list[str], done: str, finished: Workspace
) -> None:
    for _ in range(2):
        result = finished.run("fit", "-c", "small.yaml", *words).ok()
        assert (
            result.err
            == f"warning: {done} are done; raise trainer.max_{done.rsplit(maxsplit=1)[-1]}\n"
        )
    assert len(finished.runs) == 1


def test_a_run_that_began_from_a_checkpoint_is_resumed_by_the_same_command(
    finished: Workspace,
) -> None:
    shutil.copy(finished.only_run / "checkpoints" / "best.ckpt", finished.folder / "start.ckpt")
    words = ("-c", "small.yaml", "--ckpt_path=start.ckpt", "--trainer.max_epochs=4")
    kill_once_saved(finished, *words, step=21, saved=18)
    finished.run("fit", *words, HOLD).ok()
    _, run = finished.runs
    assert resumed_step(run) == (18, "last.ckpt")
    assert [row["epoch"] for row in read_metrics(run)] == ["2", "3"]


def test_hyper_parameters_in_a_checkpoint_do_not_override_the_users_values(
    finished: Workspace,
) -> None:
    finished.run(
        "fit", "-c", "small.yaml", "--ckpt_path=last", "--model.name=mine", "--trainer.max_epochs=3"
    ).ok()
    old, new = (
        load_checkpoint(run / "checkpoints" / "last.ckpt")["hyper_parameters"]
        for run in finished.runs
    )
    assert (old["name"], new["name"]) == ("net", "mine")


@pytest.mark.parametrize(
    ("command", "folder", "says"),
    [
        (
            "test",
            "runs/small/latest/checkpoints",
            r"use --run runs/small/RUN, or set it in a file given with -c",
        ),
        ("fit", "runs/small/latest/checkpoints", r"use -c runs/small/RUN/config\.yaml, or set it"),
        ("export", ".", r"use --run RUN, or set it"),
    ],
    ids=["in a run", "of a fit", "elsewhere"],
)
def test_a_checkpoint_without_a_model_is_refused_and_its_run_is_named(
    command: str, folder: str, says: str, finished: Workspace
) -> None:
    run = finished.only_run
    shutil.copy(run / "checkpoints" / "last.ckpt", finished.folder / "last.ckpt")
    result = finished.run(command, "--data=my_project.Points", f"--ckpt_path={folder}/last.ckpt")
    assert result.code == 2
    assert re.search(f"^error: model: missing; .*{says}", result.err.replace(run.name, "RUN"))


# -- stages of a run -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form", ["latest", "small", "small/ID", "small/latest", "ID", "runs/small/ID"]
)
def test_a_stage_finds_a_run_by_its_name_its_id_or_its_folder(
    form: str, finished: Workspace
) -> None:
    run = finished.only_run
    finished.run("validate", "--run", form.replace("ID", run.name)).ok()
    (result,) = read_events(run, "result")
    assert result["metrics"] == pytest.approx(
        {"val/loss": float(read_metrics(run)[-1]["val/loss"])}
    )


def test_a_layer_over_a_run_refers_to_its_values_and_sets_arguments_of_its_entries(
    workspace: Workspace,
) -> None:
    workspace.fit("-c", "small.yaml", "callbacks.mine=pytorch_lightning.callbacks.Timer")
    workspace.write("over.yaml", "trainer: {limit_val_batches: '${trainer.max_epochs}'}")
    words = ("validate", "--run", "latest", "-c", "over.yaml", "callbacks.mine.interval=epoch")
    printed = workspace.run(*words, "--print_config").yaml
    assert printed["trainer"]["limit_val_batches"] == 2
    assert printed["callbacks"]["mine"]["init_args"]["interval"] == "epoch"

    # an error of the layer is reported with all others, and with a run that is not there if it may
    # be why
    lost = workspace.run(*words, "run.root=${oc.env:NOWHERE}")
    assert lost.code == 2
    assert re.findall("^error: (.*?): ", lost.err, re.MULTILINE) == [
        "run.root",
        "There is no run 'latest'",
    ]


def test_a_stage_scores_the_best_checkpoint_unless_another_is_named(workspace: Workspace) -> None:
    # so that the first epoch is the best
    run = workspace.fit("-c", "small.yaml", "callbacks.checkpoint.mode=max")
    workspace.run("validate", "--run", "latest").ok()
    workspace.run("validate", "--run", "latest", "--ckpt_path=last").ok()
    scores = [event["metrics"]["val/loss"] for event in read_events(run, "result")]
    assert scores == pytest.approx([float(row["val/loss"]) for row in read_metrics(run)])


def test_a_run_without_the_checkpoint_is_an_error_that_says_which_it_has(
    finished: Workspace,
) -> None:
    (finished.only_run / "checkpoints" / "best.ckpt").unlink()
    result = finished.run("test", "--run", "latest")
    assert result.code == 2
    assert re.search(r"has no best checkpoint; it has .*last\.ckpt", result.err)


def test_a_stage_without_a_run_says_that_the_model_is_untrained(workspace: Workspace) -> None:
    result = workspace.run("test", "-c", "small.yaml").ok()
    assert re.search(r"model is untrained", result.err)
