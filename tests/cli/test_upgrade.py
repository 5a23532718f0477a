"""`lightkit upgrade`: what it prints, writes and refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightkit.cli import main

OLD = "trainer:\n  gpus: 0   # none\n  max_epochs: 3\n"
NEW = "trainer:\n  accelerator: cpu   # none\n  devices: auto\n  max_epochs: 3\n"
LISTED = (
    "old.yaml:2: trainer.gpus: 0 -> trainer.accelerator: cpu, trainer.devices: auto "
    "(Lightning 2.0 takes a kind of device and a number)\n"
)


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.yaml").write_text(OLD)


def test_the_config_is_printed_and_the_changes_are_listed_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upgrade", "old.yaml"]) == 0

    assert capsys.readouterr() == (NEW, LISTED)
    assert Path("old.yaml").read_text() == OLD


@pytest.mark.parametrize("words", [["-o", "new.yaml"], ["-o=new.yaml"]], ids=["apart", "joined"])
def test_the_config_is_written_and_the_changes_are_printed(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upgrade", "old.yaml", *words]) == 0

    assert capsys.readouterr() == (LISTED + "1 change, written to new.yaml\n", "")
    assert Path("new.yaml").read_text() == NEW


def test_the_old_file_itself_may_be_rewritten_and_keeps_its_permissions_and_links(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("old.yaml").chmod(0o640)
    Path("link.yaml").symlink_to("old.yaml")
    assert main(["upgrade", "old.yaml", "-o", "link.yaml"]) == 0

    assert Path("link.yaml").is_symlink()
    assert Path("old.yaml").read_text() == NEW
    assert Path("old.yaml").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in Path().iterdir()) == ["link.yaml", "old.yaml"]
    capsys.readouterr()

    assert main(["upgrade", "old.yaml", "-o", "old.yaml"]) == 0
    assert capsys.readouterr().out == "old.yaml: nothing to change\n"


def test_another_file_is_replaced_only_by_force(capsys: pytest.CaptureFixture[str]) -> None:
    Path("new.yaml").write_text("mine: 1\n")

    assert main(["upgrade", "old.yaml", "-o", "new.yaml"]) == 2
    assert "upgrade: new.yaml exists; say --force to replace it" in capsys.readouterr().err
    assert Path("new.yaml").read_text() == "mine: 1\n"
    assert main(["upgrade", "old.yaml", "-o", "new.yaml", "--force"]) == 0
    assert Path("new.yaml").read_text() == NEW


def test_what_has_no_equivalent_leaves_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("old.yaml").write_text("trainer:\n  ipus: 4\n  strategy: ddp2\n")

    assert main(["upgrade", "old.yaml", "-o", "new.yaml"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("error: trainer.") == 2
    assert "  --> old.yaml:3:13\n    3 |   strategy: ddp2\n      |             ^^^^\n" in told.err
    assert not Path("new.yaml").exists()


def test_files_that_it_extends_are_named_where_they_need_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("base.yaml").write_text("extends: [lower, today]\n")
    Path("lower.yaml").write_text("trainer: {ipus: 2}\n")
    Path("today.yaml").write_text("trainer: {max_epochs: 2}\n")
    Path("old.yaml").write_text("extends: base\n")

    assert main(["upgrade", "old.yaml", "-o", "old.yaml"]) == 0
    assert capsys.readouterr().out == (
        "old.yaml: nothing to change\nlower.yaml needs it too: lightkit upgrade lower.yaml\n"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "expected one config, got none"),
        (["old.yaml", "b.yaml"], "expected one config, got 'old.yaml', 'b.yaml'"),
        (["old.yaml", "-o"], "-o takes the name of the new file"),
        (["old.yaml", "--forse"], "unexpected argument '--forse'; did you mean '--force'?"),
        (["olt.yaml"], "olt.yaml: no such file; did you mean 'old.yaml'?"),
        (["."], ".: expected a YAML file, got a folder"),
        (["old.yaml", "-o", "."], "-o takes the name of a file, and . is a folder"),
        (["old.yaml", "-o", "old.yaml/new.yaml"], "old.yaml/new.yaml cannot be written: old.yaml is no folder"),
    ],
    ids=["none", "two", "no name", "misspelt", "missing", "folder", "onto a folder", "unwritable"],
)
def test_a_wrong_command_line_is_told(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upgrade", *words]) == 2
    assert says in capsys.readouterr().err


def test_help_and_an_upgrade_load_no_torch() -> None:
    script = (
        "import sys; from lightkit.cli import main; main(['upgrade', '--help']); main(['upgrade', 'old.yaml']); "
        "sys.exit(' '.join({'torch', 'pytorch_lightning', 'jsonargparse'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: lightkit upgrade OLD.yaml")
    assert done.stdout.endswith(NEW)


@pytest.mark.slow
def test_an_upgraded_config_runs() -> None:
    Path("old.yaml").write_text(
        "trainer:\n  gpus: 0\n  max_epochs: 1\n  weights_summary: full\n  checkpoint_callback: true\n  logger: true\n"
        "  progress_bar_refresh_rate: 5\n  log_gpu_memory: all\n  weights_save_path: kept\n  max_steps: null\n"
        "  callbacks:\n    - class_path: lightning.pytorch.callbacks.EarlyStopping\n"
        "      init_args: {monitor: val_acc, mode: auto}\n"
        "model: lightning.pytorch.demos.boring_classes.BoringModel\n"
    )
    assert main(["upgrade", "old.yaml", "-o", "new.yaml"]) == 0
    command = [sys.executable, "-m", "lightkit", "fit", "-c", "new.yaml", "--print_config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "spelling of Lightning 1.x" not in done.stderr
    for line in (
        "  accelerator: cpu",
        "    dirpath: kept",
        "      refresh_rate: 5",
        "      max_depth: -1",
        "  max_steps: -1",
    ):
        assert f"{line}\n" in done.stdout
