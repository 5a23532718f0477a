"""What a shell completes: asked of a real bash, and of the answers that both shells get."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lightkit.cli.completing import answer
from lightkit.cli.main import COMMANDS
from tests.cli.conftest import House


def completed(*words: str) -> list[str]:
    """What the last word can become in a shell that parts no words at ``=``."""
    return answer(words, is_split=False)


def test_the_first_word_is_a_command() -> None:
    assert {*COMMANDS} <= {*completed("")}
    assert completed("va") == ["validate"]
    assert completed("--ver") == ["--version"]


@pytest.mark.parametrize("command", [name for name, command in COMMANDS.items() if not command.is_stage])
def test_every_command_has_the_options_that_its_help_names(command: str, house: House) -> None:
    options = completed(command, "-")
    assert "--help" in options
    for option in (word for word in options if word.startswith("--") and word[-1] not in ".=" and word != "--help"):
        assert option in house(command, "--help").out


@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        (["fit", "--qu"], ["--quiet"]),
        (["fit", "--tra"], ["--trainer."]),
        (["export", "--fo"], ["--format"]),
        (["export", "--format", "o"], ["onnx"]),
        (["export", "--format=onnx,t"], ["--format=onnx,torch_export", "--format=onnx,torchscript"]),
        (["export", "--output", ""], ["json", ":folders"]),
        (["export", "--opset", ""], [":files"]),
        (["fit", "--fo"], []),
        (["fit", "tr"], ["trainer."]),
        (["fit", "--trainer.max_e"], ["--trainer.max_epochs="]),
        (["fit", "trainer.max_e"], ["trainer.max_epochs="]),
        (["fit", "--trainer.fast_dev_run="], ["--trainer.fast_dev_run=false", "--trainer.fast_dev_run=true"]),
        (["fit", "trainer.fast_dev_run=t"], ["trainer.fast_dev_run=true"]),
        (["fit", "--trainer.fast_dev_run", "t"], ["true"]),
        (["fit", "--launch.pro"], ["--launch.processes="]),
        (["fit", "--run.re"], ["--run.resume="]),
        (["fit", "--accelerator.g"], ["--accelerator.gpus="]),
        (["fit", "accelerator=t"], ["accelerator=tpu"]),
        (["fit", "--model", "Ima"], ["ImageClassifier"]),
        (["fit", "--model=Reg"], ["--model=Regressor"]),
        (["fit", "--model", "ImageClassifier", "--model.fr"], ["--model.freeze="]),
        (["fit", "model=ImageClassifier", "--model.freeze=b"], ["--model.freeze=backbone"]),
        (["fit", "--optimizer", "AdamW", "optimizer.we"], ["optimizer.weight_decay="]),
        (["fit", "--callbacks.early"], ["--callbacks.early_stopping."]),
        (["fit", "--callbacks.early_stopping.pat"], ["--callbacks.early_stopping.patience="]),
        (["fit", "--logger.ml"], ["--logger.mlflow."]),
        (["fit", "--output", ""], ["json"]),
        (["fit", "--output="], ["--output=json"]),
        (["fit", "-c", ""], [":files"]),
        (["fit", "--config="], [":files"]),
        (["fit", "--trainer.default_root_dir="], [":files"]),
        (["test", "--run", ""], ["latest", ":folders"]),
        (["test", "--run="], ["--run=latest", ":folders"]),
        (["explain", "--run", "la"], ["latest", ":folders"]),
        (["check", "--run", "x"], [":folders"]),
        (["check", "--run="], ["--run=latest", ":folders"]),
        (["diff", "--root", ""], [":folders"]),
        (["diff", ""], ["latest", ":files"]),
        (["diff", "latest", "r"], [":files"]),
        (["upgrade", ""], [":files"]),
        (["convert", ""], [":folders"]),
        (["convert", "photos", "--part"], ["--partitions"]),
        (["convert", "--format", "p"], ["parquet"]),
        (["convert", "--on-bad-image="], ["--on-bad-image=error", "--on-bad-image=skip"]),
        (["convert", "--partitions", ""], []),
        (["schema", "-o", ""], [":files"]),
        (["fit", "--ckpt_path", ""], ["best", "last", ":files"]),
        (["fit", "--ckpt_path", "p"], [":files"]),
        (["fit", "--ckpt_path="], ["--ckpt_path=best", "--ckpt_path=last", ":files"]),
        (["fit", "ckpt_path=l"], ["ckpt_path=last", ":files"]),
        (["check", "--ckpt_path", "l"], ["last", ":files"]),
        (["explain", "-c", "x.yaml", "tr"], ["trainer."]),
        (["explain", "-c", "x.yaml", "opt"], ["optimizer", "optimizer."]),
        (["explain", "-c", "x.yaml", "trainer.max_e"], ["trainer.max_epochs"]),
        (["explain", "-c", "x.yaml", "trainer.max_epochs="], []),
        (["explain", "-c", "x.yaml", "--trainer.max_e"], ["--trainer.max_epochs="]),
        (["explain", "model=Regressor", "model.hid"], ["model.hidden"]),
        (["explain", "va"], ["validate"]),
        (["check", "pre"], ["predict"]),
        (["predict", "--contact"], ["--contact-sheet"]),
        (["predict", "--art"], []),
        (["check", "trainer.max_e"], ["trainer.max_epochs="]),
        (["fit", "--data", "Flowers", "--data.init_args.b"], ["--data.init_args.batch_size="]),
        (
            ["fit", "--data", "Flowers", "--data.init_args.c"],
            [
                "--data.init_args.cache=",
                "--data.init_args.cache_limit_gb=",
                "--data.init_args.cache_size=",
                "--data.init_args.color_jitter=",
                "--data.init_args.crop_scale=",
            ],
        ),
        (
            ["fit", "--data", "Flowers", "data.init_args.rand_augment="],
            ["data.init_args.rand_augment=false", "data.init_args.rand_augment=true"],
        ),
        (["fit", "--data.class_path", "Flowers", "--data.batch"], ["--data.batch_size="]),
        (["fit", "--callbacks.early_stopping.init_args.pat"], ["--callbacks.early_stopping.init_args.patience="]),
        (["fit", "--trainer.max_epochs="], []),
        (["fit", "--trainer.max_epochs", ""], []),
        (["fit", "--accelerator.gpus="], []),
        (["fit", "--trainer.accelerator=c"], ["--trainer.accelerator=cpu", "--trainer.accelerator=cuda"]),
        (
            ["fit", "--accelerator.strategy=f"],
            ["--accelerator.strategy=fsdp", "--accelerator.strategy=fsdp_cpu_offload"],
        ),
        (["fit", "--trainer.strategy", "hor"], ["horovod"]),
        (["fit", "--accelerator.precision=bf16-m"], ["--accelerator.precision=bf16-mixed"]),
        (["fit", "--accelerator.precision=a"], ["--accelerator.precision=auto"]),
        (
            ["fit", "--accelerator.memory_format="],
            [f"--accelerator.memory_format={word}" for word in ("auto", "channels_last", "contiguous")],
        ),
        (["fit", "--accelerator.threads=a"], ["--accelerator.threads=auto"]),
        (["fit", "--launch.engine=s"], ["--launch.engine=slurm", "--launch.engine=spark"]),
        (["fit", "--run.resume="], ["--run.resume=auto", "--run.resume=never", ":folders"]),
        (["fit", "--run.root="], [":folders"]),
        (["fit", "--data", "Flowers", "--data.root="], [":files"]),
        (["-c", ""], [":files"]),
        (["-c", "a.yaml", "fi"], ["fit"]),
        (["fit", "--help", "trai"], ["trainer"]),
        (["fit", "--help", "trainer", "max_e"], ["max_epochs"]),
        (["fit", "--help", "callbacks", "early"], ["early_stopping"]),
        (["completion", "z"], ["zsh"]),
        (["devices", "--j"], ["--json"]),
        (["submit", "--d"], ["--data.", "--data=", "--dry-run"]),
        (["fit", "--nothing.like_it"], []),
    ],
    ids=lambda value: "_".join(value) or "nothing",
)
def test_a_word_becomes(words: list[str], becomes: list[str]) -> None:
    assert completed(*words) == becomes


def test_the_class_that_a_file_names_decides_which_keys_there_are(house: House) -> None:
    house.write("net.yaml", "model: Regressor\ncallbacks: {mine: {class_path: EarlyStopping}}\n")
    for files in (["-c", "net.yaml"], ["-c=net.yaml"], ["--config=net.yaml"]):
        assert completed("fit", *files, "--model.hid") == ["--model.hidden="]
        assert completed("explain", *files, "model.hid") == ["model.hidden"]
        assert completed("explain", *files, "callbacks.mi") == ["callbacks.mine."]
        assert completed("explain", *files, "callbacks.mine.pat") == ["callbacks.mine.patience"]
    assert completed("fit", "-c", "net.yaml", "--model", "ImageClassifier", "--model.hid") == []


def test_a_file_that_cannot_be_laid_completes_what_does_not_hang_on_it(house: House) -> None:
    house.write("broken.yaml", "model: [")
    for file in ("broken.yaml", "missing.yaml", "."):
        assert completed("explain", "-c", file, "model.") == ["model.class_path"]


def test_options_come_with_every_section() -> None:
    found = completed("fit", "--")
    for word in ("--quiet", "--print_config", "--trainer.", "--run.", "--model=", "--callbacks.", "--seed_everything="):
        assert word in found


def test_bash_gets_the_part_after_the_equals_sign_where_it_has_parted_the_word() -> None:
    assert answer(["fit", "--trainer.fast_dev_run", "=", "t"], is_split=True) == ["true"]
    assert answer(["fit", "--trainer.fast_dev_run", "="], is_split=True) == ["false", "true"]
    assert answer(["fit", "--trainer.fast_dev_run=t"], is_split=True) == ["--trainer.fast_dev_run=true"]
    assert answer(["fit", "--model", "=", "Net", "--qu"], is_split=True) == ["--quiet"]


def bash_completes(folder: Path, *words: str) -> list[str]:
    """COMPREPLY after the script's function has run in a real bash, started in a folder."""
    at = len(words)
    program = (
        'eval "$("$1" -m lightkit completion bash)"\n'
        'lightkit_here() { "$PYTHON" -m lightkit "$@"; }\n'
        f"COMP_WORDS=(lightkit_here {shlex.join(words)}); COMP_CWORD={at}\n"
        '_lightkit lightkit_here; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", program, "bash", sys.executable],
        cwd=folder,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        (["va"], ["validate"]),
        (["fit", "--trainer.max_e"], ["--trainer.max_epochs="]),
        (["fit", "--trainer.fast_dev_run", "="], ["false", "true"]),
        (["fit", "--model", "=", "Ima"], ["ImageClassifier"]),
        (["fit", "-c", "con"], ["configs", "con fig.yaml"]),
        (["test", "--run", "con"], ["configs"]),
        (["test", "--run=con"], ["--run=configs"]),
        (["fit", "--ckpt_path", "con"], ["configs", "con fig.yaml"]),
        (["fit", "--ckpt_path", "=", "con"], ["configs", "con fig.yaml"]),
        (["fit", "--ckpt_path", "="], ["best", "last", "configs", "con fig.yaml"]),
        (["fit", "--run.resume", "=", ""], ["auto", "never", "configs"]),
        (["fit", "--trainer.max_epochs", "="], [""]),
        (["explain", "tr"], ["trainer."]),
        (["fit", "--nothing.like_it"], [""]),
    ],
    ids="_".join,
)
def test_a_real_bash_completes(words: list[str], becomes: list[str], tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "con fig.yaml").touch()
    assert sorted(bash_completes(tmp_path, *words)) == sorted(becomes)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_of_a_shell_is_one_that_it_can_read(shell: str, house: House) -> None:
    script = house("completion", shell)
    assert (script.code, script.err) == (0, "")
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here to read it")
    subprocess.run([shell, "-n"], input=script.out, text=True, check=True)


@pytest.mark.parametrize("words", [[], ["fish"], ["bash", "zsh"]], ids=lambda words: "_".join(words) or "none")
def test_a_shell_that_there_is_no_script_for_is_a_mistake(words: list[str], house: House) -> None:
    done = house("completion", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: completion: expected a shell, bash or zsh")


def test_the_help_says_where_to_put_the_script(house: House) -> None:
    out = house("completion", "--help").out
    assert 'put into ~/.bashrc:                     eval "$(lightkit completion bash)"' in out
    assert 'put into ~/.zshrc, after its compinit:  eval "$(lightkit completion zsh)"' in out


def test_completing_loads_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom lightkit.cli import main\nmain(['completion', 'words', 'zsh', 'fit', '--model', 'I'])\n"
        "sys.exit(3 if {'torch', 'pytorch_lightning', 'omegaconf', 'numpy'} & {*sys.modules} else 0)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
