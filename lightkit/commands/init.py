"""`lightkit init`: write a starter project, or a config for images, texts or a table of rows."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.command_line import Invocation
from lightkit.config.origins import shown_path
from lightkit.errors import ConfigError, explain_full_disk
from lightkit.runs import write_text

if TYPE_CHECKING:
    from lightkit.cli.starter import DataSummary, Starter

_TEMPLATES = {
    "module": ("module",),
    "image": ("image",),
    "ci": ("module", "gate", "ci"),
    "cron": ("module", "gate", "cron"),
}
"""Folders of files of each template."""


def init(invocation: Invocation) -> int:
    """Write the files and return the exit code.

    Raises:
        ConfigError: If the arguments are wrong, or a file exists.
        DataError: If the folder holds no images in classes.
    """
    files, notes = _compose_files(invocation)
    existing = [name for name in files if os.path.lexists(name)]
    if existing:
        listed = "\n".join(f"  {name}" for name in existing)
        remedy = (
            "Name another file with --output." if invocation.has("data") else "Try an empty folder."
        )
        raise ConfigError(
            f"init: it overwrites nothing, and this folder already has:\n{listed}\n{remedy}"
        )
    try:
        with explain_full_disk():
            _write_files(files)
    except OSError as error:
        raise ConfigError(f"init: {error.filename} cannot be written: {error.strerror}") from None
    for name in files:
        print(f"wrote {name}")
    for note in notes:
        print(note)
    config = next(name for name in files if name.endswith(".yaml"))
    print(f"next  lightkit fit -c {shlex.quote(config)}")
    return 0


def _write_files(files: Mapping[str, str]) -> None:
    """Write all files, each whole, or none of them: half a config may be a right one."""
    written: list[Path] = []
    try:
        for name, text in files.items():
            write_text(Path(name), text)
            written.append(Path(name))
    except OSError:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def _compose_files(invocation: Invocation) -> tuple[dict[str, str], Sequence[str]]:
    """Return the text of each file by its name, and lines on what they use.

    Raises:
        ConfigError: If the options do not go together, or there is no such template.
    """
    options = invocation.options
    if "template" in options and "data" in options:
        raise invocation.error("expected --template or --data, got both")
    if "output" in options and "data" not in options:
        raise invocation.error(
            "--output names the config of --data; the files of a template have names of their own"
        )
    if "text" in options and "data" not in options:
        raise invocation.error("--text names a column of the table that --data names")
    if "data" in options:
        name, starter = _compose_config(Path(options["data"]), options)
        return {name: starter.text}, starter.notes
    template = invocation.get("template")
    if template not in _TEMPLATES:
        raise ConfigError(
            f"init: there is no template {template!r}; choose from {', '.join(_TEMPLATES)}"
        )
    return _read_templates(_TEMPLATES[template]), ()


def _compose_config(path: Path, options: Mapping[str, Any]) -> tuple[str, Starter]:
    """Return the name and the text of the config for a folder or a table.

    Raises:
        ConfigError: If it has no column of texts, and the options name one.
        DataError: If it holds nothing that a model learns from.
    """
    # here: they load pyarrow and numpy, which a template does not need
    from lightkit.cli.starter import find_table, has_sample_folders
    from lightkit.cli.starter_images import find_image_table, has_images, summarize_class_folders
    from lightkit.cli.starter_masks import find_masks
    from lightkit.cli.starter_rows import summarize_rows
    from lightkit.cli.starter_texts import find_texts

    column = options.get("text")
    stem = path.absolute().stem if path.is_file() else path.absolute().name
    name = options.get("output", f"{stem}.yaml" if column is None else f"{stem}_texts.yaml")
    table = find_table(path)
    if column is not None:
        if table is None or has_images(path, table):
            raise ConfigError(
                f"--text: {shown_path(path)} is no table of rows, of which it names a column"
            )
        return name, summarize_rows(path, table).compose_texts(name, column)
    data: DataSummary | None = (
        find_masks(path) or find_texts(path, table) or find_image_table(path, table)
    )
    if data is not None:
        return name, data.compose(name)
    # next to class folders a list or a table of something else is left aside
    if table is None or has_sample_folders(path):
        return name, summarize_class_folders(path).compose(name)
    return name, summarize_rows(path, table).compose(name)


def _read_templates(folders: Sequence[str]) -> dict[str, str]:
    root = Path(__file__).parents[1] / "templates"
    program = shutil.which("lightkit") or f"{sys.executable} -m lightkit"
    files = {}
    for folder in folders:
        for file in sorted((root / folder).rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                name = file.relative_to(root / folder).as_posix().replace("gitignore", ".gitignore")
                text = file.read_text(encoding="utf-8")
                files[name] = text.replace("@FOLDER@", shlex.quote(str(Path.cwd()))).replace(
                    "@LIGHTKIT@", program
                )
    return files
