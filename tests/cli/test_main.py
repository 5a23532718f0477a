"""The words of the command itself, and what it loads before it needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lightkit
from tests.cli.conftest import House

HEAVY = ("torch", "pytorch_lightning", "lightning_fabric", "torchvision", "torchmetrics", "mlflow", "numpy")
REPOSITORY = Path(__file__).parents[2]


def test_help_lists_every_command_and_option(house: House) -> None:
    done = house("--help")
    assert done.code == 0
    for word in ("fit", "validate", "test", "predict", "fetch", "-c FILE", "--run RUN", "--quiet", "--output json"):
        assert f"\n  {word} " in done.out
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


def test_python_m_lightkit_is_lightkit(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lightkit", "--version"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"lightkit {lightkit.__version__}\n"


@pytest.mark.slow
def test_help_of_a_command_is_that_of_lightkit_and_lists_its_keys(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lightkit", "fit", "--help"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: lightkit ")
    for key in ("--trainer.max_epochs", "--run.resume", "--model", "--data", "--optimizer", "--seed_everything"):
        assert f"{key} " in done.stdout
    assert done.stderr == ""


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
