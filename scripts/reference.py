"""Write docs/reference and docs/llms.txt from the code and from mkdocs.yml.

With --check, compare only.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from lightkit import errors
from lightkit.config import SECTIONS
from lightkit.main import COMMANDS, main
from lightkit.runs import events, folder
from lightkit.runs.summary import SUMMARY_SCHEMA

DOCS = Path(__file__).parents[1] / "docs"
OTHER_CODES = {
    0: "done",
    6: (
        "`--if-changed`: nothing has changed, nothing was done (0 with `--unchanged-ok`);"
        " `upgrade`: nothing to change"
    ),
    75: "interrupted by a signal, with a checkpoint: the same command resumes",
    129: "SIGHUP, with nothing to resume",
    130: "SIGINT, with nothing to resume",
    138: "SIGUSR1, with nothing to resume",
    errors.PIPE_CLOSED: "the reader of the output closed it, as `head -1` does",
    143: "SIGTERM, with nothing to resume",
}
"""Exit codes that are no class of `lightkit.errors`, or have a second meaning."""


def help_of(*arguments: str) -> str:
    """Return what a command prints for its help, 100 columns wide."""
    os.environ["COLUMNS"] = "100"
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main(list(arguments))
    return out.getvalue().strip()


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table of Markdown."""
    lines = [
        head,
        ["---"] * len(head),
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_commands() -> str:
    """Return the help of every command."""
    texts = (f"## {name}\n\n```\n{help_of(name, '--help')}\n```" for name in COMMANDS)
    return "\n\n".join(
        ["Every command with its options, as `lightkit COMMAND --help` prints them.", *texts]
    )


def format_keys() -> str:
    """Return the help of every section of a config."""
    names = [name for name, section in SECTIONS.items() if section.kind != "class"]
    texts = (f"## {name}\n\n```\n{help_of('fit', '--help', name)}\n```" for name in names)
    return "\n\n".join(
        ["Every key of a config, as `lightkit fit --help SECTION` prints it.", *texts]
    )


def format_events() -> str:
    """Return the events with their fields.

    With their meanings from the table in the module's docstring.
    """
    text = inspect.cleandoc(events.__doc__ or "")
    before, table, after = re.split(r"^=+ +=+$", text, flags=re.MULTILINE)
    rows = []
    for event, meaning, fields in re.findall(
        r"^(\w+) +((?:.|\n +)+?)\n +fields: (.*(?:\n +.*)*)", table, re.MULTILINE
    ):
        listed = re.findall(r"(\w+) \(([^)]*)\)", " ".join(fields.split()))
        kinds = [f"`{name}`: {kind}" for name, kind in listed]
        rows.append([f"`{event}`", ", ".join(kinds), " ".join(meaning.split())])
    end = f"{format_table(['event', 'fields', 'meaning'], rows)}\n\n{' '.join(after.split())}"
    before = " ".join(before.split("\n\n", 1)[1].split())
    note = (
        "`events.jsonl` in the run folder has one JSON object a line;"
        " `--output json` prints the same."
    )
    return f"{note}\n{before}\n\n{end}".replace("``", "`")


def format_files() -> str:
    """Return the files of a run, and the fields of summary.json."""
    found = re.findall(
        r"^([\w./]+)  +(\S.*(?:\n +\S.*)*)$", inspect.cleandoc(folder.__doc__ or ""), re.MULTILINE
    )
    rows = [[f"`{name}`", " ".join(content.split())] for name, content in found]
    files = format_table(["file", "content"], rows)
    schema: dict[str, Any] = json.loads(SUMMARY_SCHEMA.read_text(encoding="utf-8"))
    required = set(schema["required"])
    fields = [
        [f"`{name}`" + ("" if name in required else " (not always)"), field.get("description", "")]
        for name, field in schema["properties"].items()
    ]
    summary = (
        f"## summary.json\n\n{schema['description']}\n`lightkit schema"
        " --summary` prints its JSON Schema."
    )
    return (
        "A run has those of these files that its commands have"
        f" written.\n\n{files}\n\n{summary}\n\n" + format_table(["field", "meaning"], fields)
    )


def format_exit_codes() -> str:
    """Return every exit code, with the exception of the Python API for it."""

    def walk(error: type[errors.LightkitError]) -> Iterator[type[errors.LightkitError]]:
        yield error
        for child in error.__subclasses__():
            if child.__module__ == errors.__name__:
                yield from walk(child)

    found = [
        (error.exit_code, f"`{error.__name__}`", (error.__doc__ or "").splitlines()[0])
        for error in walk(errors.LightkitError)
    ]
    found += [(code, "", meaning) for code, meaning in OTHER_CODES.items()]
    rows = [
        [str(code), name, meaning]
        for code, name, meaning in sorted(found, key=lambda row: (row[0], not row[1]))
    ]
    table = format_table(["code", "exception of `lightkit.errors`", "meaning"], rows)
    note = (
        "An exit code gives the kind of an error;"
        " [Troubleshooting](../troubleshooting.md) has the remedies."
    )
    return f"{note}\n\n{table}\n\nAny other exception is code 1, with a traceback."


def format_llms_index() -> str:
    """Return llms.txt: each page of the site with its address and its first sentence."""
    site = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))
    lines = [f"# {site['site_name']}", "", f"> {site['site_description']}"]
    for section in site["nav"]:
        for title, pages in section.items():
            lines += ["", f"## {title}", ""]
            for page in pages:
                text = (DOCS / page).read_text(encoding="utf-8")
                heading = re.search(r"^# (.+)", text, re.MULTILINE)
                prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL).split(
                    "\n\n"
                )
                paragraph = next((each for each in prose if each.strip()[:1] not in "#|>:-("), "")
                assert heading is not None, page
                sentence = re.split(r"(?<=[.:]) ", " ".join(paragraph.split()))[0]
                plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence).rstrip(":")
                address = page.removesuffix("index.md").removesuffix(".md")
                lines.append(
                    f"- [{heading[1]}]({address + '/' if address else './'}): {plain}".rstrip(": ")
                )
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Return the text of each generated file by its path below docs."""
    note = "`python scripts/reference.py` writes this page from {}."
    generated = {
        "Commands": ("the help of the commands", format_commands()),
        "Keys": ("the help of the commands", format_keys()),
        "Events": ("`lightkit/runs/events.py`", format_events()),
        "Files of a run": ("`lightkit/runs/folder.py` and `summary.schema.json`", format_files()),
        "Exceptions and exit codes": ("`lightkit/errors.py`", format_exit_codes()),
    }
    names = ("commands", "keys", "events", "files", "exit-codes")
    return {
        f"reference/{name}.md": f"# {title}\n\n{text}\n\n{note.format(source)}\n"
        for name, (title, (source, text)) in zip(names, generated.items(), strict=True)
    }


if __name__ == "__main__":
    is_check, stale = sys.argv[1:] == ["--check"], []
    # the index reads the pages
    for write in (pages, lambda: {"llms.txt": format_llms_index() + "\n"}):
        for name, text in write().items():
            file = DOCS / name
            if file.is_file() and file.read_text(encoding="utf-8") == text:
                continue
            stale.append(name)
            if not is_check:
                file.write_text(text, encoding="utf-8")
    if is_check and stale:
        sys.exit(f"{', '.join(stale)} in docs: not up to date; run python scripts/reference.py")
