"""The words of the command itself, and what it loads before it needs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lightkit
from lightkit.cli.laying import OPTIONS
from lightkit.cli.main import _TAKE_A_WORD
from tests.cli.conftest import House

HEAVY = ("torch", "pytorch_lightning", "lightning_fabric", "torchvision", "torchmetrics", "mlflow", "numpy")
REPOSITORY = Path(__file__).parents[2]


def test_help_lists_every_command_and_option(house: House) -> None:
    done = house("--help")
    assert done.code == 0
    for word in ("fit", "validate", "test", "predict", "fetch", "-c FILE", "--run RUN", "--quiet", "--output json"):
        assert f"\n  {word} " in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert done.err == ""


def test_no_arguments_is_a_mistake_that_shows_the_help(house: House) -> None:
    done = house()
    assert (done.code, done.out) == (2, "")
    assert done.err == house("--help").out


def test_version(house: House) -> None:
    done = house("--version")
    assert (done.code, done.out, done.err) == (0, f"lightkit {lightkit.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        ([], 2),
        (["fitt"], 2),
        (["fit", "-c", "missing.yaml"], 2),
        (["fit", "-c", "bad.yaml"], 2),
        (["fit", "-c", "ref.yaml"], 2),
        (["fit", "--output=xml"], 2),
        (["fit", "callbacks.nothing={}"], 2),
        (["test", "--run", "latest"], 2),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else str(value),
)
def test_what_can_be_told_early_loads_nothing_heavy(words: list[str], code: int, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("trainer: [")
    (tmp_path / "ref.yaml").write_text("trainer: {max_epochs: '${nothing.here}'}")
    program = (
        "import sys\nfrom lightkit.cli import main\n"
        f"code = main({words!r})\nloaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'loaded {loaded}' if loaded else code)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "loaded" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["help"], 0),
        (["--version"], 0),
        ([], 2),
        (["fitt"], 2),
        (["fit", "--help"], 0),
        (["help", "test"], 0),
        (["completion", "bash"], 0),
        (["completion", "fish"], 2),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else str(value),
)
def test_the_front_door_loads_nothing_that_reads_configs(words: list[str], code: int, tmp_path: Path) -> None:
    light = ("lightkit.config", "yaml", "psutil", "pynvml", "omegaconf", "importlib.metadata", "dataclasses", *HEAVY)
    program = (
        "import sys\nfrom lightkit.cli import main\n"
        f"code = main({words!r})\nloaded = [name for name in {light!r} if name in sys.modules]\n"
        "sys.exit(f'loaded {loaded}' if loaded else code)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "loaded" in done.stderr) == (code, False), done.stderr


@pytest.mark.parametrize("words", [["--help"], ["fit", "--help"], ["completion", "zsh"]], ids=lambda words: words[0])
def test_a_reader_that_leaves_the_pipe_is_no_mistake(words: list[str], tmp_path: Path) -> None:
    gone, pipe = os.pipe()
    os.close(gone)
    command = [sys.executable, "-m", "lightkit", *words]
    done = subprocess.run(command, cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (128 + 13, "")


def test_a_closed_standard_output_is_no_mistake(tmp_path: Path) -> None:
    command = 'exec "$0" -m lightkit --version >&-'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("word", "hint"), [("fitt", "; did you mean 'fit'?"), ("tset", "; did you mean 'test'?"), ("zzz", "")], ids=str
)
def test_a_misspelt_command_gets_a_near_name(word: str, hint: str, house: House) -> None:
    done = house(word)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {word!r} is not a command{hint}\nCommands: fit, validate,")


@pytest.mark.parametrize(
    "words",
    [["-c", "x.yaml", "--help"], ["-h", "-c", "x.yaml"], ["--quiet", "-h"], ["-c", "--help"]],
    ids="_".join,
)
def test_help_without_a_command_is_that_of_lightkit(words: list[str], house: House) -> None:
    assert house(*words) == house("--help")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--hepl"], "; did you mean '--help'?"),
        (["--helpp"], "; did you mean '--help'?"),
        (["-c", "x.yaml", "--verson"], "; did you mean '--version'?"),
        (["--zzz"], ""),
        (["-c", "x.yaml"], ""),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_a_misspelt_option_without_a_command_gets_a_near_name(words: list[str], hint: str, house: House) -> None:
    done = house(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: No command among {' '.join(words)!r}{hint or '.'} Commands: fit,")


@pytest.mark.parametrize("word", ["--helpp", "--hepl"])
@pytest.mark.parametrize("following", [[], ["-c", "small.yaml"]], ids=["at-the-end", "before-an-option"])
def test_a_misspelt_help_after_a_command_gets_a_near_name(word: str, following: list[str], house: House) -> None:
    done = house("fit", word, *following)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {word}: expected a value after it, got ")
    assert "; did you mean 'help'?" in done.err


def test_the_words_that_may_stand_before_a_command_are_the_options(house: House) -> None:
    takes_word = {f"--{name}" for name, takes in OPTIONS.items() if takes == "value"}
    assert {*_TAKE_A_WORD} == {"-c", "--config", *takes_word}


def test_python_m_lightkit_is_lightkit(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lightkit", "--version"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"lightkit {lightkit.__version__}\n"


def test_help_of_a_class_lists_its_arguments_and_their_description(house: House) -> None:
    done = house("fit", "--model.help", "my_models.Net")
    assert done.code == 0
    assert "--model.hidden HIDDEN" in done.out
    assert "Width of the hidden layer. (type: int, default: 4)" in " ".join(done.out.split())


def test_help_of_a_class_of_lightkit_goes_by_its_short_name(house: House) -> None:
    done = house("fit", "--trainer.callbacks.help=EarlyStopping")
    assert done.code == 0
    assert ".patience PATIENCE" in done.out


def test_a_module_beside_the_config_is_found_from_any_working_directory(house: House) -> None:
    house.write("elsewhere/user_models.py", "from my_models import Net\n")
    house.write("elsewhere/net.yaml", "model: user_models.Net")
    assert house("fit", "-c", "small.yaml", "-c", "elsewhere/net.yaml").code == 2  # only the working directory counts


CONFIGS = sorted(path for path in (REPOSITORY / "configs").glob("*.yaml") if "\nmodel:" in path.read_text())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_runnable_config_resolves(path: Path, house: House) -> None:
    config = house.resolved("-c", str(path))
    assert config["run"]["name"] == path.stem
    assert config["model"]["class_path"].startswith("lightkit.models.")
    assert config["data"]["class_path"].startswith("lightkit.data.")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_runnable_config_opens_with_its_command(path: Path) -> None:
    assert f"lightkit fit -c configs/{path.name}" in path.read_text()


def test_there_are_the_three_configs() -> None:
    assert {"flowers", "fashion_mnist", "temperatures"} <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize(
    ("module", "signum"),
    [
        ("yaml", signal.SIGTERM),
        ("yaml.cyaml", signal.SIGUSR1),
        ("yaml._yaml", signal.SIGTERM),
        ("yaml._yaml", signal.SIGUSR1),
        ("lightkit.config.layers", signal.SIGINT),
        ("lightkit.cli.joining", signal.SIGTERM),
    ],
)
def test_a_signal_while_a_module_is_looked_for_ends_in_one_line(
    module: str, signum: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("trainer: {max_epochs: 1}")
    program = (
        "import os, sys\nfrom lightkit.cli import main\n"
        "class Knock:\n    def find_spec(self, name, *_):\n"
        f"        name == {module!r} and os.kill(os.getpid(), {signum})\n"
        "sys.meta_path.insert(0, Knock())\nsys.argv = ['lightkit', 'fit', '-c', 'job.yaml']\nsys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == f"interrupted by {signum.name}; there is nothing to resume\n"
    assert done.returncode == 128 + signum
    assert not (tmp_path / "runs").exists()
