"""The commands of the documentation run, in the order of their page, and print what the page shows.

In a `bash` block every `lightkit` command and every script of the page runs; a block marked `text`
after it shows the output of the last one. In a `console` block a command follows `$ `, and its
output, if any is shown, is below. The lines that are shown are printed in their order; others may
be left out. Numbers, sizes, ids of runs and line breaks are not compared. The other blocks are
examples, of which `test_site.py` checks the options. The Python of the Python API is one script.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.contract.examples import write_pictures
from tests.contract.workspace import ForkServer, Workspace

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEMPLATE = ROOT / "lightkit" / "templates" / "module"
FAST = {  # two epochs, of a machine without instructions for bf16, such as that of the pages
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "LIGHTKIT_TRAINER__MAX_STEPS": "2",
    "LIGHTKIT_TRAINER__LIMIT_TRAIN_BATCHES": "1",
    "LIGHTKIT_TRAINER__LIMIT_VAL_BATCHES": "1",
}


@dataclass(frozen=True)
class Page:
    """The files and variables of the reader of a page.

    Args:
        environ: Variables that keep trainings short.
        pictures: Folders of pictures in classes, each with the number of pictures.
        files: Further files by their names.
        photos: JPEG files by their names, each with the number of bytes that are cut off at its
            end.
        before: A command that an earlier page has run.
    """

    environ: dict[str, str] = field(default_factory=dict)
    pictures: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    photos: dict[str, int] = field(default_factory=dict)
    before: str = ""


MY_MODEL = (TEMPLATE / "my_model.py").read_text(encoding="utf-8").replace("num_hidden", "hidden")
MY_DATA = (
    (TEMPLATE / "my_data.py")
    .read_text(encoding="utf-8")
    .replace("class Points", "class MyDataModule")
)
OWN = {
    "my_models.py": MY_MODEL,
    "my_data.py": MY_DATA,
    "points.csv": (TEMPLATE / "points.csv").read_text(encoding="utf-8"),
    "my.yaml": (
        "model: {class_path: my_models.Net}\ndata: {class_path: my_data.MyDataModule}\n"
        "trainer: {max_epochs: 2}\ncallbacks:\n  early_stopping: {init_args: {monitor: val/loss}}\n"
    ),
}
BEES = "extends: [lightkit:base]\nmodel: {class_path: ImageClassifier}\ntrainer: {max_epochs: 1}\n"
NO_MLFLOW = {"LIGHTKIT_LOGGER__MLFLOW": "null"}  # its database takes seconds
NO_DOWNLOAD = {"LIGHTKIT_MODEL__INIT_ARGS__WEIGHTS": "null"}
LISTED = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")
FILES = {*re.findall(r"^\| `([^`]+)`", LISTED, re.MULTILINE)}
PHOTOS = BEES + "data: {class_path: ImageFolder, init_args: {root: photos, image_size: 32}}\n"
PAGES = {
    "README": Page({**FAST, **NO_DOWNLOAD}, {"photos": 60, "new_photos": 4}, {"my.yaml": PHOTOS}),
    "first-training": Page({**FAST, **NO_MLFLOW}),
    "install": Page(FAST),
    "your-photos": Page(
        {**FAST, **NO_DOWNLOAD},
        {"photos": 60, "new_photos": 4, "odd": 60},
        {
            "bees.yaml": BEES + "data: {class_path: ImageFolder, init_args: {root: photos}}\n",
            "job.yaml": BEES + "data: {class_path: ImageFolder, init_args: {root: odd}}\n",
            "odd/blues/0.jpg": "no image",
        },
        {"odd/reds/torn.jpg": 200},
    ),
    "your-lightningmodule": Page(FAST, files=OWN),
    "configuration": Page(
        files={
            **OWN,
            "mine.yaml": (
                "trainer:\n  max_epochs: ten\ncallbacks:\n  early_stopping: {patiense: 3}\n"
            ),
            "flowers.yaml": "extends: [configs/flowers.yaml]\n",
        }
    ),
    "recipes": Page(FAST),
    "labelled-tables": Page({**FAST, **NO_MLFLOW, **NO_DOWNLOAD}),
    "texts": Page({**FAST, **NO_MLFLOW}),
    "add-a-task": Page(),
    "python-api": Page(pictures={"photos": 60}, files={"photos.yaml": PHOTOS}),
    "tables": Page({**FAST, **NO_MLFLOW}, {"data/flower_photos": 60}),
    "retrain": Page({**FAST, **NO_MLFLOW}),
    "export-and-serve": Page(
        {},
        {"photos": 60, "new_photos": 4},
        {"flowers.yaml": PHOTOS},
        {"more/0.jpg": 0, "new_photos/torn.jpg": 200},
        before="lightkit fit -c flowers.yaml",
    ),
    "coming-from-pytorch": Page(FAST),
    "coming-from-hydra": Page(FAST),
    "coding-agents": Page(
        FAST,
        {"photos": 60},
        {"job.yaml": PHOTOS, "wrong.yaml": "trainer:\n  max_epoch: 3\n"},
    ),
    "coming-from-lightning-1": Page(
        files={
            "old.yaml": (
                "# A config of Lightning 1.5\nmodel:\n  class_path: my_models.Net\n\ntrainer:\n "
                " gpus: 2\n  accelerator: ddp\n  max_epochs: 3\n  # where it stopped\n "
                " resume_from_checkpoint: runs/old/last.ckpt\n"
            )
        }
    ),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all pages, so that the pictures of flowers are drawn once."""
    return tmp_path_factory.mktemp("home")


def prepare(page: Page, workspace: Workspace) -> None:
    shutil.copytree(ROOT / "configs", workspace.folder / "configs")
    for name, number in page.pictures.items():
        write_pictures(workspace.folder / name, number)
    for name, text in page.files.items():
        workspace.write(name, text)
    for name, cut in page.photos.items():
        (workspace.folder / name).parent.mkdir(exist_ok=True)
        stream = BytesIO()
        Image.effect_noise((40, 40), 64).convert("RGB").save(stream, "JPEG")
        (workspace.folder / name).write_bytes(stream.getvalue()[: len(stream.getvalue()) - cut])


def read_steps(text: str) -> list[tuple[str, str]]:
    """List the commands of a page that run, each with the output that is shown."""
    steps: list[tuple[str, str]] = []
    for tag, block in BLOCK.findall(text):
        if tag == "bash":
            lines = re.sub(r"\\\n\s*", "", block).splitlines()
            steps += [
                (line, "") for line in lines if re.match(r"lightkit [a-z]|python \w+\.py", line)
            ]
        elif tag == "text" and steps:
            steps[-1] = steps[-1][0], block
        elif tag == "console":
            for command in re.split(r"^\$ ", re.sub(r"\\\n\s*", "", block), flags=re.MULTILINE)[1:]:
                line, _, output = command.partition("\n")
                steps.append((line, output))
    return steps


def normalise(text: str, home: Path) -> str:
    """Write an output without what differs from machine to machine."""
    text = re.sub(
        r"\d{8}-\d{6}-[0-9a-f]{4}",
        "ID",
        text.replace(str(home), "/home/me").replace("/home/me/.", "~/."),
    )
    text = re.sub(r"-{2,}", "-", re.sub(r"\d+(,\d{3})*(\.\d+)?(e[-+]\d+)?", "0", text))
    return " ".join(re.sub(r"0 [kMG]?B\b", "0 B", text).split())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PAGES if name != "python-api"])
def test_the_commands_of_a_page_run_and_print_what_it_shows(
    name: str, tmp_path: Path, fork_server: ForkServer, home: Path
) -> None:
    page, workspace = PAGES[name], Workspace(tmp_path / "flowers", fork_server)
    file = ROOT / "README.md" if name == "README" else ROOT / "docs" / f"{name}.md"
    prepare(page, workspace)
    if name == "configuration":
        torch.save(
            {"state_dict": {}, "system": __import__("posix").system},
            workspace.folder / "from_the_web.ckpt",
        )
    environ = {**page.environ, "HOME": str(home), "XDG_CACHE_HOME": None, "COLUMNS": "100"}
    text = file.read_text(encoding="utf-8")
    steps = [*([(page.before, "")] if page.before else []), *read_steps(text)]
    assert len(steps) > 0
    for own, content in re.findall(
        r"^```\w+\n# (\w+\.(?:py|yaml))\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    ):
        if not (workspace.folder / own).exists():
            workspace.write(own, content)
    for command, shown in steps:
        words = shlex.split(command, comments=True)[1:]
        script = words.pop(0) if command.startswith("python ") else None
        printed = tmp_path / "printed.txt"
        with printed.open("wb") as stream:
            code = workspace.run(
                *words, script=script, environ=environ, stdout=stream, stderr=stream
            ).code
        output = printed.read_text(encoding="utf-8", errors="replace")
        assert code == 0 or "error: " in shown or '"exit_code"' in shown, (
            f"{command}\nends with {code}:\n{output}"
        )
        left = normalise(output.replace(str(tmp_path), str(home)), home)
        for line in shown.splitlines():
            if (expected := normalise(line, home)) not in ("", "..."):
                assert expected in left, f"{command}\n{expected}\nis not in\n{left}"
                left = left.partition(expected)[2]
    for run in workspace.runs:
        names = {
            path.name + "/" * path.is_dir()
            for path in run.iterdir()
            if not path.name.startswith(".")
        }
        assert names <= FILES, f"the page of the files of a run does not list {names - FILES}"
    workspace.close()


@pytest.mark.slow
def test_the_python_of_the_python_api_runs(
    tmp_path: Path, fork_server: ForkServer, home: Path
) -> None:
    workspace = Workspace(tmp_path / "flowers", fork_server)
    prepare(PAGES["python-api"], workspace)
    text = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    blocks = [
        block
        for tag, block in BLOCK.findall(text)
        if tag == "python" and "LightkitCLI" not in block
    ]
    workspace.write("page.py", "\n".join(blocks))
    printed = (
        workspace.run(script="page.py", environ={"HOME": str(home), "MPLBACKEND": "agg"}).ok().out
    )
    assert "did you mean 'max_epochs'" in printed
    workspace.close()
