"""The documentation.

Its site builds without a warning, its links lead somewhere, its commands and configs are real.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from lightkit.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [ROOT / "README.md", *(page for page in PAGES if page.parent.name != "reference")]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
RECIPES = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
TASKS = (ROOT / "docs" / "add-a-task.md").read_text(encoding="utf-8")
HYDRA = (ROOT / "docs" / "coming-from-hydra.md").read_text(encoding="utf-8")
OWN_CLASSES = {
    **dict(
        re.findall(
            r"^```python\n# (\w+\.py)\n(.*?)^```",
            RECIPES + TASKS + HYDRA,
            re.MULTILINE | re.DOTALL,
        )
    ),
    "my_models.py": (
        "import pytorch_lightning as pl\n\nclass Net(pl.LightningModule):\n    def __init__(self,"
        " hidden: int = 64):\n        super().__init__()\n\nclass Model(Net):\n    def"
        " __init__(self, hidden: int = 64, batch_size: int = 32):\n       "
        " super().__init__(hidden)\n"
    ),
    "my_data.py": (
        "import pytorch_lightning as pl\n\nclass MyDataModule(pl.LightningDataModule):\n   "
        " pass\n\nclass Data(pl.LightningDataModule):\n    def __init__(self, batch_size: int ="
        " 32):\n        super().__init__()\n"
    ),
    "digits.py": BLOCK.findall(
        (ROOT / "docs" / "coming-from-pytorch.md").read_text(encoding="utf-8")
    )[0][1],
}


def blocks(language: str) -> list[object]:
    """List the blocks of a language in README and documentation.

    Each with its page and number as the test's id.
    """
    found: list[object] = []
    for page in TEXTS:
        texts = [
            text for tag, text in BLOCK.findall(page.read_text(encoding="utf-8")) if tag == language
        ]
        found += [
            pytest.param(text, id=f"{page.stem}-{number}") for number, text in enumerate(texts)
        ]
    return found


def command_lines() -> list[object]:
    """List the `lightkit` commands of blocks and sentences, without comments.

    Each with its page as the test's id.
    """
    found: dict[str, str] = {}
    for page in TEXTS:
        for _, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in re.sub(r"\\\n\s*", "", text).splitlines():
                if re.match(r"(\$ )?lightkit [a-z]", line):
                    found.setdefault(line.removeprefix("$ "), page.stem)
        for line in re.findall(
            r"`(lightkit [a-z][^`]*)`", BLOCK.sub("", page.read_text(encoding="utf-8"))
        ):
            found.setdefault(" ".join(line.replace("...", "").split()), page.stem)
    return [pytest.param(line, id=f"{page}: {line[:60]}") for line, page in found.items()]


@pytest.mark.parametrize("text", blocks("yaml"))
def test_a_config_of_the_documentation_has_no_error(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "photos" / "ants").mkdir(parents=True)
    for name, source in OWN_CLASSES.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    relative_to = tmp_path / "configs" if "extends: [base" in text else tmp_path
    config = relative_to / "documented.yaml"
    config.write_text(text, encoding="utf-8")
    below = [] if {"model", "data"} <= set(yaml.safe_load(text)) else ["-c", "configs/flowers.yaml"]
    main(["check", *below, "-c", str(config)])
    for name in OWN_CLASSES:
        sys.modules.pop(name.removesuffix(".py"), None)
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    lacking = r"this machine|there is no|has no images|no such (file|folder)"  # GPUs, data
    assert not [error for error in errors if not re.search(lacking, error)]


@pytest.mark.parametrize("line", command_lines())
def test_a_command_of_the_documentation_has_the_options_it_is_given(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *arguments = shlex.split(line, comments=True)[1:]
    if name == "help":
        name = arguments[0]
    assert name in COMMANDS
    main([name, "--help"])
    known = {*re.findall(r"--[\w-]+", capsys.readouterr().out)}
    known |= {"--help", "--run", "--ckpt_path", "--print_config", "--data"}
    known |= {option.name for option in COMMANDS[name].options if not option.is_hidden}  # --json
    options = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
    assert {option for option in options if "." not in option} <= known


class Links(HTMLParser):
    """Collects the links of a page, and the anchors that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        if values.get("id"):
            self.anchors.add(str(values["id"]))


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None, reason="needs zensical, for Python 3.11 and later"
)
def test_the_site_builds_without_a_warning_and_every_link_resolves(tmp_path: Path) -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    config["plugins"][1]["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT)]
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "mkdocs.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {}
    for file in (tmp_path / "site").rglob("*.html"):
        pages[file.resolve()] = page = Links()
        page.feed(file.read_text(encoding="utf-8"))
    broken = []
    for file, page in pages.items():
        if file.name == "404.html":
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            if target.suffix == ".txt" and target.is_file():
                continue
            if target not in pages or (
                parts.fragment and unquote(parts.fragment) not in pages[target].anchors
            ):
                broken.append(f"{file.parent.name}: {link}")
    assert len(pages) > len(PAGES) - 1
    assert not broken


@pytest.mark.parametrize(
    "link", re.findall(r"\]\((docs/[^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
)
def test_a_link_of_the_readme_leads_to_a_page(link: str) -> None:
    assert (ROOT / link).is_file()


SHOWN = [
    pytest.param(file, text, id=f"{page.stem}-{file}")
    for page in TEXTS
    for file, text in re.findall(
        r"`(configs/[\w./-]+)`:\n\n```yaml\n(.*?)^```",
        page.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
]


@pytest.mark.parametrize(("file", "text"), SHOWN)
def test_a_packaged_file_is_shown_as_it_is(file: str, text: str) -> None:
    assert text == (ROOT / file).read_text(encoding="utf-8")


def test_the_page_on_retraining_shows_the_packaged_gate() -> None:
    assert "retrain-configs/gate/accuracy.yaml" in [each.id for each in SHOWN]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_details_are_the_last_section_of_a_page(page: Path) -> None:
    headings = re.findall(
        r"^## (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE
    )
    assert "In detail" not in headings[:-1]


def test_the_readme_is_short_and_opens_with_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 250
    assert [line.split("#")[0].strip() for line in lines[6:9] if line.startswith("make")] == [
        "make fit",
        "make test",
    ]


def test_the_reference_is_what_the_commands_print() -> None:
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check"], cwd=ROOT, check=True
    )


def test_the_readme_says_of_gpus_and_tpus_what_the_page_on_hardware_says() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    tested = re.search(r"`make test-gpu` passed on one ([A-Z]+ [A-Z]\d+)", page)
    assert tested
    assert tested[0] in readme
    for text in (readme, page):
        assert re.search(r"nothing here was run on a real TPU", text, re.IGNORECASE)
        assert not re.search(r"nothing here was run on[^.;]*GPU", text, re.IGNORECASE)
