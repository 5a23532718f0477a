"""The words of the command line: help, versions, near names, completion, and instant answers."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lightkit
from lightkit.main import COMMANDS
from tests.contract.batch import Answer, Command, run_batch
from tests.contract.examples import MY_PROJECT
from tests.contract.workspace import LIGHTKIT, ForkServer, Workspace

STAGES = ("fit", "validate", "test", "predict")
NOTHING_ELSE = (
    "--help",
    "help",
    "--version",
    "",
    "fitt",
    "fit --help",
    "help test",
    "completion bash",
    "completion zsh",
    "completion fish",
)
"""Answered by Python's library and lightkit alone."""
AT_ONCE = (
    "fit --help trainer",
    "fit --help run",
    "fit --help launch",
    "fit --help accelerator",
    "fit --help max_epochs",
    "fit --help trainer max_epochs",
    "fit --help trainer.max_epochs",
    "fit --help seed_everything",
    "fit --help model",
    "fit --help data",
    "fit --help callbacks",
    "fit --help logger",
    "fit --help optimizer",
    "fit --help lr_scheduler",
    "fit --help callbacks early_stopping",
    "fit --help early_stopping",
    "fit --help callbacks EarlyStopping",
    "fit --help model ImageClassifier",
    "fit --help lightkit.models.ImageClassifier",
    "fit --help logger mlflow",
    "fit --help optimizer AdamW",
    "fit --help trainr",
    "fit --help max_epoch",
    "fit --help trainer max_epoch",
    "fit --help accelerator gpu",
    "fit --help model Regresor",
    "fit --help callbacks early_stoping",
    "fit --help model lightkit.data.Flowers",
    "fit --help model nothere.Net",
    "fit --help trainer max_epochs more",
    "fit --trainer.help",
    "fit --helpp",
    "fit -h",
    "fit -c missing.yaml --help",
    "help fit",
    "help devices",
    "help fitt",
    "-c x.yaml --help",
    "--hepl",
    "-c x.yaml --verson",
    "--zzz",
    "tset",
    "zzz",
    "devices --jsn",
    "completion",
    "completion bash zsh",
    "check -c bad.yaml",
    "check -c bad.yaml --deep",
    "check -c good.yaml --junit",
    "fit -c bad.yaml",
    "fit -c missing.yaml",
    "fit --output=xml -c good.yaml",
    "fit -c good.yaml --run latest",
    "test --run latest",
    "runs --root .",
    "gc --root . --keep-last 1 --dry-run",
    "submit -c good.yaml --dry-run",
    *(f"{command} --help" for command in COMMANDS),
)
"""Answered without torch, Lightning, jsonargparse or MLflow."""
ON_CONFIGS = (
    "check -c good.yaml",
    "explain -c good.yaml",
    "explain -c good.yaml trainer.max_epochs",
    "diff good.yaml bad.yaml",
    "upgrade good.yaml",
    "configs",
    "schema",
)
"""Commands on configs that run none of a user's code."""


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Workspace]:
    """A working directory with small configs."""
    workspace = Workspace(tmp_path_factory.mktemp("words") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("good.yaml", "model: Regressor\ndata: Temperatures\ntrainer: {max_epochs: 3}\n")
    workspace.write("bad.yaml", "model: Regressor\ntrainer: {max_epochs: ten}\n")
    workspace.write("signalled.py", SIGNALLED)
    yield workspace
    workspace.close()


@pytest.fixture(scope="module")
def cold(room: Workspace) -> Callable[[str], Answer]:
    """What commands say that no process has prepared anything for."""
    rest = [words for words in AT_ONCE if words not in NOTHING_ELSE]
    answers = run_batch(
        room, {words: Command(tuple(words.split())) for words in NOTHING_ELSE}, cold=True
    )
    warm_up = ("check", "-c", str(room.folder / "bad.yaml"))
    answers |= run_batch(
        room, {words: Command(tuple(words.split())) for words in rest}, cold=True, warm_up=warm_up
    )
    return answers.__getitem__


Cold = Callable[[str], Answer]


@pytest.fixture(scope="module")
def on_configs(room: Workspace) -> dict[str, Answer]:
    """What commands on configs answer that no process has prepared anything for."""
    return run_batch(
        room, {words: Command(tuple(words.split())) for words in ON_CONFIGS}, cold=True
    )


# -- what is loaded --------------------------------------------------------------------------------


@pytest.mark.parametrize("words", NOTHING_ELSE, ids=lambda words: words.replace(" ", "_") or "none")
def test_the_front_door_loads_python_and_lightkit_alone(words: str, cold: Cold) -> None:
    answer = cold(words)
    assert answer.code == (2 if words in ("", "fitt", "completion fish") else 0), answer.err
    assert answer.third_party == set()


@pytest.mark.parametrize("words", AT_ONCE, ids=lambda words: words.replace(" ", "_"))
def test_what_can_be_answered_at_once_loads_no_torch(words: str, cold: Cold) -> None:
    answer = cold(words)
    assert answer.code in (0, 2), answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("words", ON_CONFIGS, ids=lambda words: words.replace(" ", "_"))
def test_commands_on_configs_load_neither_torch_nor_numpy_nor_requests(
    words: str, on_configs: dict[str, Answer]
) -> None:
    answer = on_configs[words]
    assert answer.code in (0, 1, 6), answer.err
    assert answer.third_party.isdisjoint({"torch", "numpy", "requests"})


# -- help ------------------------------------------------------------------------------------------


def test_help_lists_every_command_and_option(cold: Cold) -> None:
    answer = cold("--help")
    assert (answer.code, answer.err) == (0, "")
    for word in (
        *COMMANDS,
        "-c FILE",
        "--run RUN",
        "--quiet",
        "--output json",
        "--print_config",
        "--version",
    ):
        assert re.search(rf"^  {re.escape(word)} ", answer.out, re.MULTILINE), word
    assert max(map(len, answer.out.splitlines())) <= 80


def test_no_arguments_is_an_error_that_shows_the_help(cold: Cold) -> None:
    assert (cold("").code, cold("").out, cold("").err) == (2, "", cold("--help").out)


def test_version_is_printed(cold: Cold) -> None:
    assert (cold("--version").out, cold("--version").err) == (
        f"lightkit {lightkit.__version__}\n",
        "",
    )


def test_python_m_lightkit_is_lightkit(workspace: Workspace) -> None:
    workspace.write(
        "as_module.py",
        "import runpy\nrunpy.run_module('lightkit', run_name='__main__', alter_sys=True)\n",
    )
    assert (
        workspace.run("--version", script="as_module.py").ok().out
        == f"lightkit {lightkit.__version__}\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, cold: Cold) -> None:
    answer = cold(f"{command} --help")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(f"usage: lightkit {command}")
    assert max(map(len, answer.out.splitlines())) <= 120


def test_the_help_of_check_says_that_a_deep_check_runs_code(cold: Cold) -> None:
    assert "runs the config's own code" in cold("check --help").out


@pytest.mark.parametrize("stage", STAGES)
def test_the_help_of_a_stage_is_one_screen(stage: str, cold: Cold) -> None:
    lines = cold(f"{stage} --help").out.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 80


def test_the_screen_of_fit_has_every_section_and_option(cold: Cold) -> None:
    out = cold("fit --help").out
    sections = (
        "trainer",
        "model",
        "data",
        "optimizer",
        "lr_scheduler",
        "callbacks",
        "logger",
        "run",
        "launch",
    )
    for word in (
        *sections,
        "accelerator",
        "seed_everything",
        "ckpt_path",
        "-c FILE",
        "--quiet",
        "--print_config",
    ):
        assert re.search(rf"(?<![\w.]){re.escape(word)}", out), word
    assert "--help all" in out
    assert "--run RUN" not in out
    assert "--run RUN" in cold("test --help").out


def test_a_stage_that_does_not_train_shows_no_keys_of_training(cold: Cold) -> None:
    assert "max_epochs=" in cold("fit --help").out
    assert "max_epochs=" not in cold("predict --help").out


@pytest.mark.parametrize("words", ["help fit", "fit -h", "fit -c missing.yaml --help"])
def test_help_of_a_stage_can_be_asked_for_in_each_order(words: str, cold: Cold) -> None:
    assert cold(words).out == cold("fit --help").out


@pytest.mark.parametrize("words", ["help", "-c x.yaml --help"])
def test_help_without_a_command_is_that_of_lightkit(words: str, cold: Cold) -> None:
    assert cold(words).out == cold("--help").out


def test_help_of_a_command_can_be_asked_for_before_it(cold: Cold) -> None:
    assert cold("help devices").out == cold("devices --help").out


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ("trainer", ("max_epochs", "devices", "precision", "gradient_clip_val")),
        ("run", ("name", "root", "resume", "wait_s", "stale_s")),
        ("launch", ("processes", "engine", "threads")),
        ("accelerator", ("gpus", "tpu_cores", "num_processes", "strategy", "precision")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_help_of_a_section_lists_its_keys(section: str, keys: tuple[str, ...], cold: Cold) -> None:
    answer = cold(f"fit --help {section}")
    assert (answer.code, answer.err) == (0, "")
    for key in keys:
        assert f"\n  {key} " in answer.out
    assert max(map(len, answer.out.splitlines())) <= 100


def test_a_key_has_its_type_its_default_and_what_it_is_for(cold: Cold) -> None:
    trainer, run = (
        " ".join(cold(f"fit --help {section}").out.split()) for section in ("trainer", "run")
    )
    assert (
        "max_epochs an integer or null; default: null Stop training once this number of epochs"
        in trainer
    )
    assert re.search(r"root text; default: runs \w+", run)


def test_a_section_has_help_in_the_spelling_of_a_class_too(cold: Cold) -> None:
    assert cold("fit --trainer.help").out == cold("fit --help trainer").out


@pytest.mark.parametrize(
    "words",
    ["max_epochs", "trainer max_epochs", "trainer.max_epochs", "seed_everything"],
    ids=lambda words: words,
)
def test_help_of_one_key_is_a_few_lines(words: str, cold: Cold) -> None:
    out = cold(f"fit --help {words}").out
    assert re.match(r"  (trainer\.max_epochs  an integer|seed_everything  )", out)
    assert len(out.splitlines()) < 10


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("model", ["ImageClassifier", "Regressor"]),
        ("data", ["Flowers", "FashionMNIST", "ImageFolder", "Temperatures"]),
        ("callbacks", ["early_stopping", "lr_monitor", "ModelCheckpoint", "EarlyStopping"]),
        ("logger", ["mlflow", "csv", "CSVLogger"]),
        ("optimizer", ["AdamW", "SGD"]),
        ("lr_scheduler", ["CosineAnnealingLR", "StepLR"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_help_of_a_section_of_classes_lists_what_there_is(
    section: str, names: list[str], cold: Cold
) -> None:
    answer = cold(f"fit --help {section}")
    assert (answer.code, answer.err) == (0, "")
    for name in names:
        assert f"\n  {name}" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("words", "path", "key"),
    [
        ("model ImageClassifier", "lightkit.models.ImageClassifier", "label_smoothing"),
        ("lightkit.models.ImageClassifier", "lightkit.models.ImageClassifier", "label_smoothing"),
        ("callbacks early_stopping", "pytorch_lightning.callbacks.EarlyStopping", "patience"),
        ("early_stopping", "pytorch_lightning.callbacks.EarlyStopping", "patience"),
        ("callbacks EarlyStopping", "pytorch_lightning.callbacks.EarlyStopping", "patience"),
        ("logger mlflow", "lightkit.loggers.MLflow", "tracking_uri"),
        ("optimizer AdamW", "torch.optim.AdamW", "weight_decay"),
    ],
    ids=lambda value: value.replace(" ", "_"),
)
def test_help_of_a_class_has_its_arguments(words: str, path: str, key: str, cold: Cold) -> None:
    answer = cold(f"fit --help {words}")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(f"{path}\n")
    assert f"\n  {key} " in answer.out


def test_help_of_an_entry_says_what_is_required_and_how_it_is_typed(cold: Cold) -> None:
    out = cold("fit --help early_stopping").out
    assert re.search(r"\n  monitor +text; required\n", out)
    assert "\nlightkit fit --callbacks.early_stopping.monitor=" in out


@pytest.fixture(scope="module")
def warm(room: Workspace) -> Cold:
    """What commands say that load torch."""
    words = (
        "fit --help model my_project.Net",
        "fit --help model my_project.Nett",
        "fit --trainer.callbacks.help=EarlyStopping",
        "fit --modle.help Regressor",
        "fit --help all",
    )
    return run_batch(room, {each: Command(tuple(each.split())) for each in words}).__getitem__


def test_help_of_a_class_of_ones_own_has_its_docstring(warm: Cold) -> None:
    answer = warm("fit --help model my_project.Net")
    assert (answer.code, answer.err) == (0, "")
    said = " ".join(answer.out.split())
    assert said.startswith("my_project.Net A small network with dropout.")
    assert "hidden an integer; default: 8 Width of the hidden layer." in said


def test_a_short_name_stands_for_a_class_in_lightningclis_help(warm: Cold) -> None:
    assert ".patience PATIENCE" in warm("fit --trainer.callbacks.help=EarlyStopping").ok().out


def test_help_all_is_that_of_lightningcli_with_lightkits_keys(warm: Cold) -> None:
    answer = warm("fit --help all")
    assert answer.out.startswith("usage: lightkit ")
    for key in (
        "--trainer.max_epochs",
        "--run.resume",
        "--model",
        "--data",
        "--optimizer",
        "--seed_everything",
    ):
        assert f"{key} " in answer.out
    assert (answer.code, answer.err) == (0, "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("trainr", r"no section 'trainr'; did you mean 'trainer'\?"),
        ("max_epoch", r"'max_epoch'; did you mean 'max_epochs'"),
        ("trainer max_epoch", r"no key 'max_epoch'; did you mean 'max_epochs'"),
        ("accelerator gpu", r"no key 'gpu'; did you mean 'gpus'"),
        ("model Regresor", r"no class 'Regresor'; did you mean 'Regressor'"),
        ("callbacks early_stoping", r"no class 'early_stoping'; did you mean 'EarlyStopping'"),
        ("model lightkit.data.Flowers", r"Flowers is not a LightningModule; it goes under data"),
        ("model nothere.Net", r"nothere\.Net cannot be imported: No module named 'nothere'"),
        ("trainer max_epochs more", r"expected nothing after it, got 'more'"),
    ],
    ids=lambda value: value.replace(" ", "_"),
)
def test_help_about_nothing_is_reported_with_a_near_name(words: str, says: str, cold: Cold) -> None:
    answer = cold(f"fit --help {words}")
    assert (answer.code, answer.out) == (2, "")
    assert re.match(rf"error: --help.*{says}", answer.err), answer.err


def test_help_about_a_class_that_a_module_lacks_has_a_near_name(warm: Cold) -> None:
    answer = warm("fit --help model my_project.Nett")
    assert (answer.code, answer.out) == (2, "")
    assert re.match(r"error: .*my_project.*'Nett'; did you mean 'Net'", answer.err)


def test_help_of_no_section_of_classes_is_an_error_without_a_traceback(warm: Cold) -> None:
    answer = warm("fit --modle.help Regressor")
    assert (answer.code, answer.out) == (2, "")
    assert re.match(r"error: .*--modle\.help", answer.err)
    assert "Traceback" not in answer.err


# -- near names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("fitt", "did you mean 'fit'?"),
        ("tset", "did you mean 'test'?"),
        ("help fitt", "did you mean 'fit'?"),
    ],
    ids=lambda value: value.replace(" ", "_"),
)
def test_a_misspelt_command_gets_a_near_name(words: str, hint: str, cold: Cold) -> None:
    answer = cold(words)
    assert (answer.code, answer.out) == (2, "")
    assert hint in answer.err
    assert f"Commands: {', '.join(COMMANDS)}." in answer.err


@pytest.mark.parametrize("words", ["zzz", "--zzz"])
def test_what_is_near_to_nothing_gets_the_list_of_commands_alone(words: str, cold: Cold) -> None:
    answer = cold(words)
    assert (answer.code, "did you mean" in answer.err) == (2, False)
    assert f"Commands: {', '.join(COMMANDS)}." in answer.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--hepl", "'--help'"),
        ("-c x.yaml --verson", "'--version'"),
        ("fit --helpp", "'help'"),
        ("devices --jsn", "'--json'"),
    ],
    ids=["without a command", "after a file", "after a stage", "after a command"],
)
def test_a_misspelt_option_gets_a_near_name(words: str, hint: str, cold: Cold) -> None:
    answer = cold(words)
    assert (answer.code, answer.out) == (2, "")
    assert f"did you mean {hint}" in answer.err


def test_a_run_given_to_fit_says_how_to_go_on_in_it(cold: Cold) -> None:
    answer = cold("fit -c good.yaml --run latest")
    assert answer.code == 2
    assert "fit takes no --run" in answer.err
    assert "--run.resume=" in answer.err


# -- completion ------------------------------------------------------------------------------------

COMPLETED: list[tuple[list[str], list[str]]] = [
    (["va"], ["validate"]),
    (["--ver"], ["--version"]),
    (["fit", "--qu"], ["--quiet"]),
    (["fit", "--tra"], ["--trainer."]),
    (["fit", "--trainer.max_e"], ["--trainer.max_epochs="]),
    (["fit", "trainer.max_e"], ["trainer.max_epochs="]),
    (["fit", "--trainer.fast_dev_run", "="], ["false", "true"]),
    (["fit", "--accelerator.g"], ["--accelerator.gpus="]),
    (["fit", "--model", "Ima"], ["ImageClassifier"]),
    (["fit", "--model", "=", "Ima"], ["ImageClassifier"]),
    (["fit", "--model", "ImageClassifier", "--model.fr"], ["--model.freeze="]),
    (["fit", "-c", "net.yaml", "--model.hid"], ["--model.hidden="]),
    (["fit", "--callbacks.early_stopping.pat"], ["--callbacks.early_stopping.patience="]),
    (["fit", "-c", "con"], ["configs", "con fig.yaml"]),
    (["test", "--run", "con"], ["configs"]),
    (["fit", "--ckpt_path", "=", "con"], ["configs", "con fig.yaml"]),
    (["explain", "trainer.max_e"], ["trainer.max_epochs"]),
    (["export", "--format", "o"], ["onnx"]),
    (["devices", "--j"], ["--json"]),
    (["completion", "z"], ["zsh"]),
    (["fit", "--help", "trai"], ["trainer"]),
    (["fit", "--nothing.like_it"], []),
]


@pytest.fixture(scope="module")
def completed(room: Workspace, cold: Cold) -> dict[tuple[str, ...], list[str]]:
    """What one bash completes the last word of each command line to.

    With the script that lightkit prints.
    """
    if shutil.which("bash") is None:
        pytest.skip("there is no bash here")
    folder = room.folder / "shell"
    (folder / "configs").mkdir(parents=True)
    (folder / "con fig.yaml").touch()
    (folder / "net.yaml").write_text("model: Regressor\n", encoding="utf-8")
    program = cold("completion bash").ok().out
    for words, _ in COMPLETED:
        program += (
            f"COMP_WORDS=(lightkit {shlex.join(words)}); COMP_CWORD={len(words)}; COMPREPLY=()\n"
        )
        program += '_lightkit lightkit; printf "%s\\n" "${COMPREPLY[@]}"; echo -- end\n'
    done = subprocess.run(
        ["bash", "--norc", "-c", program],
        cwd=folder,
        env={**room.environ(), "PATH": f"{LIGHTKIT.parent}{os.pathsep}/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    )
    assert done.stderr == ""
    found = done.stdout.split("-- end\n")[:-1]
    return {
        tuple(words): [line for line in lines.splitlines() if line]
        for (words, _), lines in zip(COMPLETED, found, strict=True)
    }


@pytest.mark.parametrize(
    ("words", "becomes"), COMPLETED, ids=["_".join(words) for words, _ in COMPLETED]
)
def test_bash_completes(
    words: list[str], becomes: list[str], completed: dict[tuple[str, ...], list[str]]
) -> None:
    assert sorted(completed[tuple(words)]) == sorted(becomes)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_can_read_the_script_for_it(shell: str, cold: Cold, tmp_path: Path) -> None:
    script = cold(f"completion {shell}").ok().out
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here to read it")
    subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("words", ["completion", "completion fish", "completion bash zsh"])
def test_a_shell_without_a_script_is_an_error(words: str, cold: Cold) -> None:
    answer = cold(words)
    assert (answer.code, answer.out) == (2, "")
    assert re.match(r"error: completion: .*bash or zsh", answer.err)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_help_says_where_the_script_goes(shell: str, cold: Cold) -> None:
    out = cold("completion --help").out
    assert re.search(rf'~/\.{shell}rc.*eval "\$\(lightkit completion {shell}\)"', out)


# -- a signal while modules are imported -----------------------------------------------------------

SIGNALLED = """\
import os, sys

module, signum = sys.argv[1:]


class Sends:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), int(signum))


sys.meta_path.insert(0, Sends())
sys.argv[1:] = ["fit", "-c", "good.yaml"]
from lightkit.main import main
sys.exit(main())
"""
"""Runs a fit and sends a signal when Python looks for a module."""


@pytest.mark.parametrize(
    ("module", "signum"),
    [("yaml", signal.SIGTERM), ("yaml._yaml", signal.SIGUSR1), ("psutil", signal.SIGINT)],
    ids=["python", "native", "interrupt"],
)
def test_a_signal_while_modules_are_imported_ends_in_one_line(
    module: str, signum: signal.Signals, room: Workspace
) -> None:
    result = room.run_cold(module, str(int(signum)), script="signalled.py")
    assert result.err == f"interrupted by {signum.name}; there is nothing to resume\n"
    assert result.code == 128 + signum
    assert not (room.folder / "runs").exists()
