"""Packaged configs and `lightkit init`: what somebody has who has only installed the wheel."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from tests.contract.data_cases import png
from tests.contract.workspace import LIGHTKIT, Workspace, read_json

ROOT = Path(__file__).parents[2]
LAYERS = {
    file.relative_to(ROOT / "configs").with_suffix("").as_posix()
    for file in (ROOT / "configs").rglob("*.yaml")
}


def write_photos(folder: Path, number: int = 20) -> None:
    """Write two classes of small pictures."""
    for offset, name in ((0, "ants"), (100, "bees")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(number):
            (folder / name / f"{index}.png").write_bytes(png(offset + index))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
    ]
    subprocess.run([*build, str(ROOT)], check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> dict[str, str]:
    """Environment variables with which Python imports lightkit from the wheel.

    Python imports nothing of the checkout.
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    assert (tmp_path / "site" / "lightkit" / "py.typed").is_file()
    return {
        "PYTHONPATH": str(tmp_path / "site"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


def test_configs_are_listed_each_with_what_it_is(workspace: Workspace) -> None:
    lines = workspace.run("configs").ok().out.splitlines()[1:]
    assert {line.split()[0].removeprefix("lightkit:") for line in lines} == LAYERS
    assert all(len(line.split(maxsplit=1)) > 1 for line in lines)


def test_a_config_is_shown_and_copied_but_replaces_no_file(workspace: Workspace) -> None:
    text = (ROOT / "configs" / "accelerator" / "ddp.yaml").read_text(encoding="utf-8")
    assert workspace.run("configs", "show", "accelerator/ddp").ok().out == text
    workspace.run("configs", "copy", "accelerator/ddp", "-o", "mine.yaml").ok()
    assert (workspace.folder / "mine.yaml").read_text(encoding="utf-8") == text
    workspace.run("configs", "copy", "accelerator/ddp").ok()
    assert (workspace.folder / "ddp.yaml").read_text(encoding="utf-8") == text
    refused = workspace.run("configs", "copy", "accelerator/ddp")
    assert refused.code == 2
    assert "ddp.yaml exists" in refused.err

    # a copy alone takes the options of a copy
    shown = workspace.run("configs", "show", "accelerator/ddp", "--output", "other.yaml")
    assert (shown.code, shown.out) == (2, "")
    assert "--output goes with `copy NAME`" in shown.err
    assert not (workspace.folder / "other.yaml").exists()


def test_packaged_configs_are_layers_after_c_and_in_extends(workspace: Workspace) -> None:
    workspace.write("top.yaml", "extends: [lightkit:temperatures]\ntrainer: {max_epochs: 3}\n")
    shown = (
        workspace.run("explain", "-c", "top.yaml", "-c", "lightkit:accelerator/ddp", "--json")
        .ok()
        .out
    )
    assert '"ddp"' in shown
    assert "Temperatures" in shown


def test_an_unknown_packaged_config_is_an_error_with_its_place_and_a_near_name(
    workspace: Workspace,
) -> None:
    workspace.write("top.yaml", "extends: [lightkit:bas]\n")
    failed = workspace.run("check", "-c", "top.yaml")
    assert failed.code == 2
    assert "lightkit:bas: no packaged config; did you mean 'base'?" in failed.err
    assert "top.yaml:1:11" in failed.err


@pytest.mark.parametrize(
    "template", ["module", *(pytest.param(name, marks=pytest.mark.long) for name in ("ci", "cron"))]
)
def test_a_template_trains_from_the_wheel(
    template: str, installed: dict[str, str], workspace: Workspace
) -> None:
    folder = workspace.folder / "project"
    folder.mkdir()
    command = [sys.executable, "-m", "lightkit"]
    environ = workspace.environ(**installed)
    for words in (
        ["init", "--template", template],
        ["fit", "-c", "train.yaml", "--trainer.max_epochs=2"],
    ):
        subprocess.run([*command, *words], cwd=folder, env=environ, check=True, capture_output=True)
    run = next((folder / "runs" / "train").glob("2*"))
    assert read_json(run / "summary.json")["status"] == "done"
    again = subprocess.run(
        [*command, "init"], cwd=folder, env=environ, check=False, capture_output=True, text=True
    )
    assert again.returncode == 2
    assert re.search(r"overwrites nothing.*already has:\n(.*\n)*  train\.yaml\n", again.stderr)
    for other, file in (("ci", "requirements.txt"), ("cron", "crontab")):
        (folder / other).mkdir()
        words = ["init", "--template", other]
        subprocess.run(
            [*command, *words], cwd=folder / other, env=environ, check=True, capture_output=True
        )
        assert {path.name for path in (folder / other).iterdir()} >= {
            file,
            "my_model.py",
            "train.yaml",
        }


@pytest.mark.parametrize("name", ["lightkit", pytest.param("retrain", marks=pytest.mark.long)])
def test_the_commands_of_the_workflows_of_the_ci_template_run(
    name: str, workspace: Workspace
) -> None:
    workspace.run("init", "--template", "ci").ok()
    text = (workspace.folder / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    (job,) = yaml.safe_load(text)["jobs"].values()
    words = [
        shlex.split(step["run"])
        for step in job["steps"]
        if step.get("run", "").startswith("lightkit ")
    ]
    commands = {"lightkit": ["check", "fit"], "retrain": ["retrain", "gc"]}
    assert [command[1] for command in words] == commands[name]
    for command in words:
        workspace.run(*command[1:], timeout_s=400).ok()
    if name == "retrain":
        assert (workspace.folder / "retrain.xml").is_file()
        assert workspace.run("history").ok().out.splitlines()[1].split()[:2] == ["train", "1"]


def test_the_image_template_trains_on_photos(workspace: Workspace) -> None:
    workspace.run("init", "--template", "image").ok()
    write_photos(workspace.folder / "photos")
    workspace.fit(
        *(
            "-c",
            "train.yaml",
            "--model.weights=null",
            "--model.backbone=small_cnn",
            "--model.freeze=none",
        ),
        *(
            "--data.image_size=16",
            "--data.batch_size=4",
            "--trainer.max_epochs=1",
            "--data.num_workers=0",
        ),
    )


def test_init_data_writes_a_config_for_a_folder_of_photos_with_reasons(
    workspace: Workspace,
) -> None:
    write_photos(workspace.folder / "insects")
    workspace.write("insects/LICENSE.txt", "A licence, and no table.")
    workspace.run("init", "--data", "insects").ok()
    text = (workspace.folder / "insects.yaml").read_text(encoding="utf-8")
    assert text.startswith("# 40 images in 2 classes.\n")
    assert "Classes: ants 20, bees 20" in text
    assert (
        "min: 0.75   # always answering 'ants' gives 0.50 on all images; halfway from there to 1\n"
        in text
    )
    assert "max_drop: 0   # no worse than the champion: 4 test images are too few" in text
    assert workspace.run("check", "-c", "insects.yaml").ok()
    fitted = workspace.run(
        "fit", "-c", "insects.yaml", "--trainer.max_epochs=1", "--data.num_workers=0"
    ).ok()
    assert re.search(
        r"^auto +precision \S+, memory_format \w+, .*\(\w+ with.*bf16", fitted.out, re.MULTILINE
    )


def test_init_data_says_of_which_images_its_chance_is(workspace: Workspace) -> None:
    numbers = {"train/ants": 6, "train/bees": 2, "test/ants": 1, "test/bees": 3}
    for number, (folder, count) in enumerate(numbers.items()):
        for index in range(count):
            path = workspace.folder / "insects" / folder / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(10 * number + index))
    workspace.run("init", "--data", "insects").ok()
    text = (workspace.folder / "insects.yaml").read_text(encoding="utf-8")
    assert "# Classes: ants 7, bees 5\n" in text
    # 7 of 12
    assert (
        "min: 0.79   # always answering 'ants' gives 0.58 on all images; halfway from there to 1\n"
        in text
    )


def test_init_data_writes_a_gate_that_lets_no_model_sink(workspace: Workspace) -> None:
    for index in range(30):
        for split in ("train", "test"):
            folder = workspace.folder / "split" / split / ("ants" if index % 2 else "bees")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{index}.png").write_bytes(png(index))
    workspace.run("init", "--data", "split").ok()
    text = (workspace.folder / "split.yaml").read_text(encoding="utf-8")
    assert (
        "  margin: 0.17   # shown to be less than this worse than the champion, with 95 %"
        " confidence\n" in text
    )
    assert "  drift: {window: 10, max_drop: 0.17}" in text
    assert "The smallest drop that 30 images can show: 0.17." in text
    assert "max_drop: 0.091" not in text
    workspace.run("check", "-c", "split.yaml").ok()


def test_init_data_writes_a_config_for_a_table_of_photos(workspace: Workspace) -> None:
    write_photos(workspace.folder / "insects")
    workspace.run("convert", "insects", "insects.parquet_folder", "--format", "parquet").ok()
    workspace.run("init", "--data", "insects.parquet_folder").ok()
    text = (workspace.folder / "insects.parquet_folder.yaml").read_text(encoding="utf-8")
    assert "class_path: Table" in text
    assert "augment" not in text  # a table is a stream, of which no features are kept
    workspace.run("check", "-c", "insects.parquet_folder.yaml").ok()


def test_init_data_writes_a_config_for_a_folder_of_images_and_masks(workspace: Workspace) -> None:
    random = np.random.default_rng(0)
    for number in range(40):
        for folder, pixels in (
            ("images", random.integers(0, 255, (40, 50, 3), dtype=np.uint8)),
            ("masks", np.uint8(255) * random.integers(0, 2, (40, 50), dtype=np.uint8)),
        ):
            path = workspace.folder / "scans" / folder / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    workspace.run("init", "--data", "scans").ok()
    text = (workspace.folder / "scans.yaml").read_text(encoding="utf-8")
    assert 'classes: {"background": 0, "object": 255}   # the names are yours to choose' in text
    shares = re.search(
        r"# Classes, by their share of the pixels: background (\d+)%, object (\d+)%\n", text
    )
    assert shares is not None
    assert sorted(map(int, shares.groups())) == [50, 50]
    assert (
        "image_size: 32   # the whole image as a square; the shorter side is 40 pixels (median)"
        in text
    )
    assert "batch_size: 8   # 3 batches of about 28 training images" in text
    # the larger class has half of it, the other one nothing
    assert "for each pixel gives 0.25 on all images; halfway from there to 1." in text
    assert (
        "gate: {metric: test/iou, min: 0.63, max_drop: 0}" in text
        or "min: 0.62, max_drop: 0}" in text
    )
    assert "4 test images are too few to measure a drop" in text
    assert len([line for line in text.splitlines() if line and not line.startswith("#")]) <= 12
    workspace.run("check", "-c", "scans.yaml").ok()
    words = (
        "fit",
        "-c",
        "scans.yaml",
        "--model.backbone=small_cnn",
        "--model.weights=null",
        "--trainer.max_epochs=1",
    )
    fitted = workspace.run(*words, "--data.num_workers=0").ok()
    assert "val/iou" in fitted.out
    run = workspace.only_run
    judged = workspace.run("gate", str(run), "--gate.min=0.01")
    assert judged.code == 0, judged.err
    (workspace.folder / "scans" / "masks" / "3.png").unlink()
    refused = workspace.run("init", "--data", "scans", "--output", "other.yaml")
    assert refused.code == 3
    assert "1 image has no mask" in refused.err
    assert "scans/images/3.png" in refused.err


def test_init_data_counts_in_words_that_fit_the_number(workspace: Workspace) -> None:
    write_photos(workspace.folder / "insects", number=5)
    workspace.run("init", "--data", "insects").ok()
    text = (workspace.folder / "insects.yaml").read_text(encoding="utf-8")
    assert (
        "batch_size: 8   # about 7 training images, which are fewer than a batch: one batch an"
        " epoch\n" in text
    )
    assert "1 test image is too few" in text
    (workspace.folder / "one").mkdir()
    (workspace.folder / "insects" / "ants").rename(workspace.folder / "one" / "ants")
    assert "5 images in 1 class;" in workspace.run("init", "--data", "one").err


def test_init_data_writes_another_file_where_one_of_that_name_exists(workspace: Workspace) -> None:
    write_photos(workspace.folder / "insects", number=5)
    workspace.run("init", "--data", "insects").ok()
    refused = workspace.run("init", "--data", "insects")
    assert refused.code == 2
    assert "insects.yaml\nName another file with --output." in refused.err
    workspace.run("init", "--data", "insects", "--output", "second.yaml").ok()
    assert "lightkit fit -c second.yaml" in (workspace.folder / "second.yaml").read_text(
        encoding="utf-8"
    )


TABLES = {"no_label": ({"image": [b"", b""], "kind": ["a", "b"]}, "data.init_args.label")}


def test_init_data_of_a_table_of_paths_lists_the_rows_without_an_image(
    workspace: Workspace,
) -> None:
    pq.write_table(
        pa.table({"path": ["a.jpg", "b.jpg"], "label": ["a", "b"]}), workspace.folder / "t.parquet"
    )
    failed = workspace.run("init", "--data", "t.parquet")
    assert failed.code == 3
    assert "2 of 2 rows name no image that is there" in failed.err
    assert "t.parquet, row 0: a.jpg does not exist" in failed.err


@pytest.mark.parametrize("name", TABLES)
def test_init_data_names_the_recipe_for_a_table_of_another_kind(
    name: str, workspace: Workspace
) -> None:
    columns, recipe = TABLES[name]
    pq.write_table(pa.table(columns), workspace.folder / "t.parquet")
    failed = workspace.run("init", "--data", "t.parquet")
    assert failed.code == 3
    assert "expected a column of image bytes" in failed.err
    assert recipe in failed.err


SPLITS = [*(["train"] * 8), "val", "test"]
ROWS = "size,colour,day,label,split\n" + "".join(
    f"{at}.5,{'red' if at % 3 else 'blue'},2026-01-{at % 28 + 1:02d},"
    f"{'a' if at % 2 else 'b'},{SPLITS[at % 10]}\n"
    for at in range(40)
)


def test_init_data_writes_a_config_of_at_most_12_lines_for_a_table_of_rows(
    workspace: Workspace,
) -> None:
    workspace.write("t.csv", ROWS)
    workspace.run("init", "--data", "t.csv").ok()
    text = (workspace.folder / "t.yaml").read_text(encoding="utf-8")
    assert text.startswith(
        "# 40 rows with 1 number, 1 category, 1 date; the target has classes: b 20, a 20.\n"
    )
    assert (
        "min: 0.75   # always answering 'b' gives 0.50 on all rows; halfway from there to 1\n"
        in text
    )
    assert (
        "max_drop: 0   # no worse than the champion: 4 test rows are too few to measure a drop"
        in text
    )
    assert len([line for line in text.splitlines() if line and not line.startswith("#")]) <= 12
    workspace.run("check", "-c", "t.yaml").ok()
    pq.write_table(
        pa.table({"width": [1.5, 2.5, 3.5], "price": [1.25, 2.25, 3.5]}),
        workspace.folder / "p.parquet",
    )
    workspace.run("init", "--data", "p.parquet").ok()
    text = (workspace.folder / "p.yaml").read_text(encoding="utf-8")
    assert 'target: "price"   # the last column' in text
    assert "gate" not in text
    workspace.run("check", "-c", "p.yaml").ok()
    for country, price in (("de", 1.5), ("fr", 2.25)):  # as Spark and pandas part a table
        part = workspace.folder / "parts" / f"country={country}"
        part.mkdir(parents=True)
        pq.write_table(pa.table({"target": [price, price + 1]}), part / "0.parquet")
    workspace.run("init", "--data", "parts").ok()
    text = (workspace.folder / "parts.yaml").read_text(encoding="utf-8")
    assert "# 4 rows with 1 category; the target has values" in text
    workspace.write("one.csv", "a,label\n1,x\n2,x\n")
    failed = workspace.run("init", "--data", "one.csv")
    assert failed.code == 3
    assert "column 'label' has one value in all rows (x)" in failed.err


def test_init_data_says_of_texts_among_other_columns_how_to_learn_from_them(
    workspace: Workspace,
) -> None:
    rows = [
        f"word {at} of a text of class {'ab'[at % 2]},me{at % 3},{'ab'[at % 2]}\n"
        for at in range(40)
    ]
    workspace.write("t.csv", "note,author,label\n" + "".join(rows))
    result = workspace.run("init", "--data", "t.csv").ok()
    text = (workspace.folder / "t.yaml").read_text(encoding="utf-8")
    assert text.startswith("# 40 rows with 1 category; the target has classes: a 20, b 20.\n")
    for line in (
        "# Used: author.",
        "# Not used: note; it has texts, whose words this model does not read.",
        '    ignore: ["note"]',
    ):
        assert f"\n{line}\n" in text
    assert "used  author, to predict label\n" in result.out
    assert "not   note: it has texts, whose words this model does not read\n" in result.out
    checked = workspace.run("check", "-c", "t.yaml").ok()
    assert "leaves out" not in checked.err
    for shown in (result.out, text):
        assert "lightkit init --data t.csv --text note\n" in shown
    workspace.run("init", "--data", "t.csv", "--text", "note").ok()
    workspace.run("fit", "-c", "t_texts.yaml", "--trainer.max_epochs=1").ok()


def test_init_data_takes_the_texts_where_a_table_has_nothing_else(workspace: Workspace) -> None:
    rows = [f"w{at:04},word {at} of a text,{'ab'[at % 2]}\n" for at in range(60)]
    workspace.write("t.csv", "ticket,note,label\n" + "".join(rows))
    result = workspace.run("init", "--data", "t.csv").ok()
    assert "used  note, to predict label\nnot   ticket\n" in result.out
    assert "model: {class_path: TextClassifier}" in (workspace.folder / "t.yaml").read_text("utf-8")


@pytest.mark.parametrize(
    ("table", "words", "says"),
    [
        ("note,label", ("--text", "nte"), "has no column 'nte'; did you mean 'note'"),
        ("note,label", ("--text", "label"), "'label' is the column of what is predicted"),
        ("note,price", ("--text", "note"), "the target 'price' has numbers"),
        ("note,price", (), "'note' has texts, from which classes alone are predicted"),
    ],
    ids=["unknown", "target", "values", "values alone"],
)
def test_init_refuses_texts_that_nothing_can_be_learned_from(
    table: str, words: tuple[str, ...], says: str, workspace: Workspace
) -> None:
    cells = [f"{at}.5" if "price" in table else "ab"[at % 2] for at in range(60)]
    rows = [f"word {at} of a text,{cell}\n" for at, cell in enumerate(cells)]
    workspace.write("t.csv", f"{table}\n" + "".join(rows))
    failed = workspace.run("init", "--data", "t.csv", *words)
    assert failed.code == 3
    assert says in failed.err


def test_init_data_writes_a_config_of_at_most_12_lines_for_texts(workspace: Workspace) -> None:
    texts = [f"word {at} of a text of class {'ab'[at % 2]}" for at in range(40)]
    lines = [
        json.dumps({"id": at, "note": text, "label": "ab"[at % 2]}) + "\n"
        for at, text in enumerate(texts)
    ]
    workspace.write("t.jsonl", "".join(lines))
    for at, text in enumerate(texts):
        workspace.write(f"news/{'ab'[at % 2]}/{at}.txt", text)
    for data, named in (("t.jsonl", 'text: "note"'), ("news", 'path: "news"')):
        workspace.run("init", "--data", data).ok()
        text = (workspace.folder / f"{Path(data).stem}.yaml").read_text(encoding="utf-8")
        assert text.startswith("# 40 texts in 2 classes.\n")
        assert "# Classes: a 20, b 20\n" in text
        assert named in text
        assert len([line for line in text.splitlines() if line and not line.startswith("#")]) <= 12
        workspace.run("check", "-c", f"{Path(data).stem}.yaml").ok()
    workspace.write("one/a/1.txt", "some words of a text")
    failed = workspace.run("init", "--data", "one")
    assert failed.code == 3
    assert "its texts are of one class, a" in failed.err


@pytest.mark.parametrize("name", ["t.csv", "t.xlsx", "t.jsonl"])
def test_a_table_that_is_no_parquet_is_refused_for_images_by_check_and_fit(
    name: str, workspace: Workspace
) -> None:
    workspace.write(name, "a,label\n1,x\n2,y\n")
    config = (
        "model: {class_path: Regressor}\ndata: {class_path: Table, init_args: {path:"
        f" {name}}}}}\n"
    )
    workspace.write("own.yaml", config)
    for words in (["check", "-c", "own.yaml"], ["fit", "-c", "own.yaml"]):
        failed = workspace.run(*words)
        assert failed.code in (2, 3)
        assert f"{name} is " in failed.err
        assert (
            "which is not read; expected a Delta table, or a file or folder of Parquet"
            in failed.err
        )
        assert '"Numbers in a table"' in failed.err
        assert "Traceback" not in failed.err


@pytest.mark.parametrize(
    "words", [["fit", "photos"], ["fit", "-c", "photos"], ["fit", "--data", "photos"]], ids=str
)
def test_a_folder_in_the_place_of_a_config_offers_init(
    words: list[str], workspace: Workspace
) -> None:
    write_photos(workspace.folder / "photos", number=2)
    failed = workspace.run(*words)
    assert failed.code == 2
    assert "`lightkit init --data photos` writes a config" in failed.err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--data", "nowhere"], 3, "no such file or folder"),
        (["--data", "t.xlsx"], 3, "spreadsheets are not read; save it as CSV"),
        (["--data", "empty"], 3, "expected one folder per class"),
        (
            ["--data", "flat"],
            3,
            "--data flat: 2 images, not in the folder of a class; expected one folder per class",
        ),
        (["--template", "modul"], 2, "choose from module, image, ci, cron"),
        (["photos"], 2, "unexpected argument 'photos'; did you mean --data photos?"),
    ],
    ids=["no_folder", "spreadsheet", "no_images", "no_class_folder", "no_template", "positional"],
)
def test_init_says_what_it_expected(
    words: list[str], code: int, says: str, workspace: Workspace
) -> None:
    (workspace.folder / "empty").mkdir()
    workspace.write("t.xlsx", "a spreadsheet")
    write_photos(workspace.folder / "photos", number=1)
    (workspace.folder / "flat").mkdir()
    for number, photo in enumerate(sorted(workspace.folder.glob("photos/*/*.*"))[:2]):
        photo.rename(workspace.folder / "flat" / f"{number}{photo.suffix}")
    failed = workspace.run("init", *words)
    assert failed.code == code
    assert says in failed.err


@pytest.mark.parametrize("output", ["file/b.yaml", "a" * 300], ids=["below_a_file", "too_long"])
@pytest.mark.parametrize(
    "words", [("init", "--data", "table.csv"), ("configs", "copy", "flowers")], ids=["init", "copy"]
)
def test_an_output_that_cannot_be_written_is_an_error_in_words(
    words: tuple[str, ...], output: str, workspace: Workspace
) -> None:
    workspace.write("table.csv", "a,target\n" + "0.5,1\n0.25,0\n" * 20)
    workspace.write("file", "")
    failed = workspace.run(*words, "--output", output)
    assert failed.code == 2
    assert re.fullmatch(r"error: .*cannot be written: .*\n", failed.err)


@pytest.mark.parametrize(
    "words",
    [
        ("init", "--template", "module"),
        ("configs", "copy", "flowers"),
        ("configs", "copy", "flowers", "--force"),
    ],
    ids=["init", "configs", "force"],
)
def test_a_full_disk_is_one_error_and_leaves_no_half_of_a_config(
    words: tuple[str, ...], workspace: Workspace
) -> None:
    for path in workspace.folder.iterdir():
        path.unlink()
    # a limit on the length of a file is to a process what a full disk is
    limited = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300));"
    limited += "os.execv(sys.argv[1], sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-c", limited, str(LIGHTKIT), *words],
        cwd=workspace.folder,
        env=workspace.environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert re.fullmatch(r"error: .*File too large.*\n", ended.stderr)
    assert list(workspace.folder.iterdir()) == []
    workspace.run(*words).ok()
