"""A corpus of broken configs, each with what `lightkit check` says of it, to the letter.

A case is a file `mistakes/NAME.yaml`, or a folder `mistakes/NAME/` where several files are needed,
or a command line in `SAID` alone. `mistakes/NAME.txt` holds the whole standard error. After a
change of words, this writes them anew, and each is then to be read as a user would::

    UPDATE_GOLDENS=1 python -m pytest tests/contract/test_front_mistakes.py
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest
import yaml

from lightkit.main import COMMANDS
from tests.contract.batch import Command, run_batch
from tests.contract.workspace import ForkServer, Workspace

CORPUS = Path(__file__).with_name("mistakes")
CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = "model: Regressor\ndata: Temperatures\n"
MINE = "model: my_models.Net\ndata: my_models.Points\n"
"""Configs without mistakes, for the cases to stand on; somebody's own classes need torch to be
judged."""
STATES = {
    "small.yaml": SMALL,
    "mine.yaml": MINE,
    "my_models.py": (CORPUS / "my_models.py.txt").read_text("utf-8"),
    "my_layers.py": (CORPUS / "my_layers.py").read_text("utf-8"),
}


@dataclass(frozen=True)
class Said:
    """How a case is run where its file alone does not say all.

    Args:
        words: The command line; that of the case's file if empty.
        environ: Further environment variables.
    """

    words: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)


SAID = {
    "file_is_a_folder": Said("check -c ."),
    "file_missing": Said("check -c smal.yaml"),
    "file_in_missing_folder": Said("check -c config/small.yaml"),
    "file_is_packaged": Said("check -c configs/gate/accuracy.yaml"),
    "file_without_flag": Said("check small.yaml"),
    "flag_abbreviated": Said("check -c small.yaml --trainer.max_epoch=3"),
    "flag_against_file": Said("check -c flag_against_file.yaml accelerator.gpus=2"),
    "flag_bad_key": Said("check -c small.yaml --trainer..max_epochs=3"),
    "flag_into_a_list": Said("check -c mine.yaml --model.tags=[a] --model.tags.2.name=b"),
    "flag_of_epochs": Said("check -c small.yaml --epochs 3"),
    "flag_of_learning_rate": Said("check -c small.yaml --lr 0.1"),
    "flag_misspelt": Said("check -c small.yaml --quite"),
    "flag_of_another_value": Said("check -c small.yaml --output xml"),
    "flag_of_unknown_key": Said("check -c mine.yaml --model.init_args.hiden=3 --frobnicate=3"),
    "flag_print_config": Said("check -c small.yaml --print_config=nonsense"),
    "flag_without_value": Said("check -c small.yaml --trainer.max_epochs"),
    "flag_wrong_value": Said("check -c mine.yaml --trainer.max_epochs=ten model.hidden=2.5"),
    "missing_model_of_test": Said("check test -c missing_model_of_test.yaml"),
    "option_without_file": Said("check -c"),
    "run_missing": Said("check test --run latest"),
    "run_of_fit": Said("check -c small.yaml --run latest"),
    "subcommand_missing": Said("-c small.yaml"),
    "subcommand_misspelt": Said("chekc -c small.yaml"),
    "variable_bad_name": Said("check -c small.yaml", {"LIGHTKIT_TRAINER____MAX_EPOCHS": "3"}),
    "variable_gives_wrong_value": Said(environ={"NET_WIDTH": "twenty"}),
    "variable_of_unknown_key": Said("check -c small.yaml", {"LIGHTKIT_TRAINER__MAX_EPOCH": "3"}),
    "variable_wrong_value": Said("check -c small.yaml", {"LIGHTKIT_TRAINER__MAX_EPOCHS": "ten"}),
}
CASES = sorted(
    {path.stem for path in CORPUS.iterdir() if path.suffix in ("", ".yaml")} - {"__pycache__"}
    | SAID.keys()
)
OWN_CLASSES = frozenset((CORPUS / "own_classes.list").read_text("utf-8").split())
"""Cases whose mistakes show only when a class of the user's own is imported, and torch with it."""


def words_of(case: str) -> list[str]:
    """The words after `lightkit` of a case."""
    return SAID.get(case, Said()).words.split() or ["check", "-c", f"{case}.yaml"]


def lay_out(case: str, folder: Path) -> Path:
    """Put a case's files into a folder, with the models and the config that all cases stand on."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in STATES.items():
        (folder / name).write_text(text, encoding="utf-8")
    if (CORPUS / case).is_dir():
        shutil.copytree(CORPUS / case, folder, dirs_exist_ok=True)
        # so named because linters would find fault with them
        for module in folder.glob("*.py.txt"):
            module.rename(module.with_suffix(""))
    if (CORPUS / f"{case}.yaml").is_file():
        shutil.copy(CORPUS / f"{case}.yaml", folder)
    return folder


def contents(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder."""
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def stable(said: str, folder: Path) -> str:
    """Leave out of a message what is not the same everywhere.

    Also leave out the commands, of which there may be more.
    """
    said = said.replace(f"{folder.resolve()}", "<folder>")
    return said.replace(f"Commands: {', '.join(COMMANDS)}.", "Commands: <commands>.")


def golden(case: str) -> str:
    """What a case is to say."""
    return (CORPUS / f"{case}.txt").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Judgement:
    """What a command said of a mistake.

    Args:
        code: Exit code.
        out: Standard output.
        err: Standard error without what differs from machine to machine.
        is_as_before: Whether the folder holds what it held before.
    """

    code: int
    out: str
    err: str
    is_as_before: bool


Bench = Callable[..., dict[str, Judgement]]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Bench]:
    """Runs commands, each in a folder of its own."""
    workspace = Workspace(tmp_path_factory.mktemp("mistakes") / "work", fork_server)
    workspace.write("wrong.yaml", "model: Regressor\ntrainer: {max_epochs: ten}\n")

    def run(commands: Mapping[str, Command], *, cold: bool = False) -> dict[str, Judgement]:
        folders = {name: command.folder or workspace.folder for name, command in commands.items()}
        before = {name: contents(folder) for name, folder in folders.items()}
        answers = run_batch(
            workspace, commands, cold=cold, warm_up=("check", "-c", "wrong.yaml") if cold else ()
        )
        return {
            name: Judgement(
                answer.code,
                answer.out,
                stable(answer.err, folders[name]),
                contents(folders[name]) == before[name],
            )
            for name, answer in answers.items()
        }

    yield run
    workspace.close()


def case_command(case: str, folder: Path) -> Command:
    """The command of a case, its files laid out in a folder."""
    return Command(tuple(words_of(case)), lay_out(case, folder), SAID.get(case, Said()).environ)


@pytest.fixture(scope="module")
def answers(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judgement]:
    """What is said of each case.

    Of those without a class of the user's own by processes that cannot import torch.
    """
    base = tmp_path_factory.mktemp("cases")
    commands = {case: case_command(case, base / case) for case in CASES}
    cold = {case: command for case, command in commands.items() if case not in OWN_CLASSES}
    return bench(cold, cold=True) | bench({case: commands[case] for case in OWN_CLASSES})


@pytest.mark.parametrize("case", CASES)
def test_each_error_is_reported_with_its_place_and_leaves_nothing(
    case: str, answers: dict[str, Judgement]
) -> None:
    found = answers[case]
    if os.environ.get("UPDATE_GOLDENS") and found.code == 2:
        (CORPUS / f"{case}.txt").write_text(found.err, encoding="utf-8")
    assert (found.code, found.out) == (2, ""), found.err
    assert found.err == golden(case)
    assert found.is_as_before


CHECKED = [case for case in CASES if words_of(case)[0] == "check"]
SWEPT = {*CHECKED} - {*CHECKED[::4]}
"""Cases that `check --full` judges with `make test-long`."""


@pytest.fixture(scope="module")
def parse(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[bool], dict[str, Judgement]]:
    """Runs `check --full` on the swept cases or the others.

    Classes are imported, and jsonargparse parses the rest.
    """

    @cache
    def parse(is_swept: bool) -> dict[str, Judgement]:
        base = tmp_path_factory.mktemp("parsed")
        full = {}
        for case in CHECKED:
            if (case in SWEPT) == is_swept:
                command = case_command(case, base / case)
                at = 1 + (not command.words[1].startswith("-"))  # behind the stage
                full[case] = replace(
                    command, words=(*command.words[:at], "--full", *command.words[at:])
                )
        return bench(full)

    return parse


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.long if case in SWEPT else ()) for case in CHECKED],
)
def test_jsonargparse_finds_no_other_error_than_the_schema(
    case: str, parse: Callable[[bool], dict[str, Judgement]]
) -> None:
    parsed = parse(case in SWEPT)
    assert (parsed[case].code, parsed[case].err) == (2, golden(case))


# -- several mistakes ------------------------------------------------------------------------------

PLANTED = {
    "three_kinds_in_one_file": 4,
    "three_layers": 4,
    "five_in_one_class": 5,
    "torch_free_and_others": 6,
    "class_unknown_two_in_list": 4,
    "data_missing_in_two_places": 3,
}
"""Cases with several faults, and how many."""


@pytest.mark.parametrize(("case", "num_faults"), PLANTED.items(), ids=PLANTED)
def test_each_planted_fault_gives_one_report_in_the_order_of_places(
    case: str, num_faults: int
) -> None:
    reports = golden(case).removeprefix("error: ").split("\nerror: ")
    assert len(reports) == num_faults
    places = [
        next(line for line in report.splitlines() if line.startswith("  --> "))
        for report in reports
    ]
    files = list(dict.fromkeys(place.split(":")[0] for place in places))
    keys = [(files.index(place.split(":")[0]), *map(int, place.split(":")[1:])) for place in places]
    assert keys == sorted(keys)
    assert len({report.split(": ")[0] for report in reports}) == num_faults


OTHERS = ("fit", "validate", "test", "predict", "submit", "fetch", "tune", "retrain")


@pytest.fixture(scope="module")
def answers_of_others(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Judgement]:
    """What other commands than check say of a config with four mistakes."""
    base = tmp_path_factory.mktemp("others")
    return bench(
        {
            name: Command((name, "-c", "three_layers.yaml"), lay_out("three_layers", base / name))
            for name in OTHERS
        },
        cold=True,
    )


@pytest.mark.parametrize("command", OTHERS)
def test_every_command_reports_the_same_before_it_builds_anything(
    command: str, answers_of_others: dict[str, Judgement]
) -> None:
    assert answers_of_others[command] == Judgement(2, "", golden("three_layers"), is_as_before=True)


# -- files that would take a machine down ----------------------------------------------------------

RUN = "['touch owned']"
LAUGHS = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
MAPPINGS = "".join(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}\n" for i in range(1, 40))
MERGES = "".join(f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
TEXTS = "".join(f"a{i}: {f'${{a{i - 1}}}' * 10}\n" for i in range(1, 12))
REFERENCES = "".join(f"a{i}: {{x: '${{a{i - 1}}}', y: '${{a{i - 1}}}'}}\n" for i in range(1, 40))
LONG = "at most 1000 kB"
DEEP = "more than 100 levels"
MANY = "more than 20000 values"
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "5 MB list": ("a: [" + "1, " * 1_700_000 + "1]\n", LONG),
    "5 MB of keys": ("".join(f"key_{i}: {i}\n" for i in range(330_000)), LONG),
    "a list just short enough": ("a: [" + "1," * 400_000 + "1]\n", MANY),
    "keys just few enough": ("".join(f"k{i}: 1\n" for i in range(19_000)), "k0: no such key"),
    "10000 lists": ("[" * 10_000 + "]" * 10_000, DEEP),
    "10000 mappings": ("{a: " * 10_000 + "}" * 10_000, DEEP),
    "10000 dashes": ("- " * 10_000 + "1", DEEP),
    "10000 question marks": ("? " * 10_000 + "1", DEEP),
    "blocks": ("".join(" " * level + "a:\n" for level in range(1_300)), DEEP),
    "laughs in lists": ("a0: &a0 [x, x, x]\n" + LAUGHS, MANY),
    "laughs in mappings": ("a0: &a0 {x: 1, y: 2}\n" + MAPPINGS, MANY),
    "laughs in merge keys": ("a0: &a0 {x: 1}\n" + MERGES, MANY),
    "laughs in interpolated text": ("a0: xxxxxxxxxx\n" + TEXTS, MANY),
    "laughs in interpolated mappings": ("a0: {x: 1}\n" + REFERENCES, MANY),
    "a chain of interpolations": (
        "".join(f"a{i}: ${{a{i + 1}}}\n" for i in range(3_000)) + "a3000: 1\n",
        DEEP,
    ),
    "nested interpolations": (
        "a: '" + "${oc.env:X," * 2_000 + "}" * 2_000 + "'\n",
        "nests too deeply",
    ),
    "python as a value": (
        f"a: !!python/object/apply:os.system {RUN}\n",
        "the tag !!python/object/apply:os.system",
    ),
    "python as a key": (f"? !!python/object/apply:os.system {RUN}\n: 1\n", "key"),
    "python in a list": (
        f"a: [!!python/object/new:os.system {RUN}]\n",
        "the tag !!python/object/new:os.system",
    ),
    "random bytes": (random.Random(1).randbytes(100_000), "expected UTF-8 text, got the byte 0x"),
    "a program": (b"\x7fELF\x02\x01\x01\0", r"'\x7f' is not allowed"),
    "null bytes": (b"trainer:\n  max_epochs: 3\0\n", r"'\x00' is not allowed"),
    "UTF-16": ("a: 1\n".encode("utf-16"), "got the byte 0xff at line 1, column 1"),
    "nothing": ("", "model: missing"),
    "a long key": ("k" * 100_000 + ": 1\n", "a key is longer than 1024 characters"),
    "a long class": ("model: " + "a." * 50_000 + "Net\n", "model.class_path"),
    "a long number": ("trainer: {max_epochs: " + "9" * 10_000 + "}\n", "as an integer"),
    "a long value": (
        "trainer: {max_epochs: " + "x" * 100_000 + "}\n",
        "trainer.max_epochs: expected an integer",
    ),
}
MOST_MB = 500


@pytest.fixture(scope="module")
def answers_to_hostile(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Judgement]:
    """What is said of each hostile file.

    In a process with little memory and a bound on its processor time.
    """
    base = tmp_path_factory.mktemp("hostile")
    commands = {}
    for number, (name, (content, _)) in enumerate(HOSTILE.items()):
        folder = base / str(number)
        folder.mkdir()
        (folder / "bad.yaml").write_bytes(
            content if isinstance(content, bytes) else content.encode()
        )
        commands[name] = Command(("check", "-c", "bad.yaml"), folder, most_mb=MOST_MB)
    return bench(commands, cold=True)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_an_error_in_little_memory_and_runs_nothing(
    name: str, answers_to_hostile: dict[str, Judgement]
) -> None:
    found = answers_to_hostile[name]
    assert (found.code, found.out) == (2, ""), found.err[-2000:]
    assert found.err.startswith("error: ")
    assert HOSTILE[name][1] in found.err
    assert "Traceback" not in found.err
    assert len(found.err) < 20_000
    assert found.is_as_before


# -- every section, with a value of each wrong type
# -------------------------------------------------------------------

MAPPINGS_ALONE = ("trainer", "run", "launch", "watchdog", "gate", "callbacks", "logger", "fit")
CLASSES = ("model", "data", "optimizer", "lr_scheduler")
WRONG_TYPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(MAPPINGS_ALONE, ("5", "2.5", "true", "text", "[a]")),
    **dict.fromkeys(CLASSES, ("5", "2.5", "true", "[a]")),
    "accelerator": ("5", "2.5", "true", "text", "[a]"),
    "seed_everything": ("2.5", "text", "[a]", "{a: 1}", "-1", "1" + 40 * "0"),
    "ckpt_path": ("5", "2.5", "true", "[a]", "{a: 1}"),
    "config": ("5", "2.5", "true", "text", "[a]", "{a: 1}"),
    "modle": ("5", "{}", "text"),
}
OF_WRONG_TYPE = [(section, value) for section, values in WRONG_TYPES.items() for value in values]
EMPTY = (*MAPPINGS_ALONE, "accelerator", "optimizer", "lr_scheduler", "ckpt_path", "extends")


@pytest.fixture(scope="module")
def answers_to_types(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Judgement]:
    """What `check` and `fit` say of each section with a value of a wrong type."""
    base = tmp_path_factory.mktemp("types")
    commands = {}
    for number, (section, value) in enumerate(OF_WRONG_TYPE):
        folder = lay_out("", base / str(number))
        (folder / "wrong.yaml").write_text(f"{section}: {value}\n", encoding="utf-8")
        is_first = WRONG_TYPES[section][0] == value
        for command in ("check", "fit") if is_first else ("check",):
            words = (command, "-c", "small.yaml", "-c", "wrong.yaml")
            commands[f"{command} {section}: {value}"] = Command(words, folder)
    return bench(commands, cold=True)


@pytest.mark.parametrize(
    ("section", "value"), OF_WRONG_TYPE, ids=[f"{row[0]}: {row[1][:9]}" for row in OF_WRONG_TYPE]
)
def test_a_section_of_a_wrong_type_is_one_error_at_its_place(
    section: str, value: str, answers_to_types: dict[str, Judgement]
) -> None:
    found = answers_to_types[f"check {section}: {value}"]
    assert (found.code, found.out) == (2, ""), found.err
    assert re.match(rf"error: (\S+: )?{section}(\.class_path)?: \S+ \S+", found.err), found.err
    assert found.err.count("error: ") == 1, found.err
    assert "\n  --> wrong.yaml:1:" in found.err
    assert answers_to_types.get(f"fit {section}: {value}", found) == found


def test_an_empty_section_sets_nothing(bench: Bench, tmp_path: Path) -> None:
    folder = lay_out("", tmp_path / "empty")
    (folder / "empty.yaml").write_text(
        "".join(f"{section}:\n" for section in EMPTY), encoding="utf-8"
    )
    words = ("fit", "-c", "small.yaml", "-c", "empty.yaml", "trainer.fast_dev_run=true", "--quiet")
    answer = bench({"empty": Command(words, folder)})["empty"]
    assert (answer.code, answer.err) == (0, "")


# -- how it is said --------------------------------------------------------------------------------

TERMINAL = r"""
run: {name: "a\e[2J\a/b"}
trainer: {"max\e[31m": 3, max_epochs: "\e[31m\r\u202e\u2066ten"}
model: "\eN"
"""
CARETS = {
    "Chinese": ("trainer: {a: 二, max_epochs: 三十}", "trainer: {a: 二, max_epochs: 三十}", 29, 4),
    "emoji": ("trainer: {max_epochs: 🌸}  # 🌸", "trainer: {max_epochs: 🌸}  # 🌸", 22, 2),
    "Hebrew": ("trainer: {max_epochs: מספר}", "trainer: {max_epochs: מספר}", 22, 4),
    "accents in two": ("trainer: {max_epochs: e\u0301x}", "trainer: {max_epochs: e\u0301x}", 22, 2),
    "tabs": ("trainer: {max_epochs:\t\tten\t}", "trainer: {max_epochs:  ten }", 23, 3),
    "byte order mark": ("\ufefftrainer: {max_epochs: ten}", "trainer: {max_epochs: ten}", 22, 3),
    "carriage returns": ("trainer: {max_epochs: ten}\r", "trainer: {max_epochs: ten}", 22, 3),
}
MANY_KEYS = ", ".join(f"max_{i}: 1" for i in range(60))
LONG_LINE = (
    f"model: Regressor\nrun: {{{MANY_KEYS}, name: [1], {MANY_KEYS.replace('max', 'min')}}}\n"
)


@pytest.fixture(scope="module")
def answers_to_odd(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judgement]:
    """What is said of files with odd characters, long lines, long flags, and very many layers."""
    base = tmp_path_factory.mktemp("odd")
    odd = {
        **{name: f"{text}\nmodel: Regressor\n" for name, (text, *_) in CARETS.items()},
        "terminal": TERMINAL,
        "long line": LONG_LINE,
        "long flags": SMALL,
        "many files": "extends: c1\n",
    }
    further = {
        "terminal": ("--trainer.min_epochs=\x1b[31m\u202eten", "--\x1b[2J=3"),
        "long flags": ("--trainer.max_epochs=" + "x" * 100_000, "-" + "y" * 100_000),
    }
    commands = {}
    for name, text in odd.items():
        folder = base / name.replace(" ", "_")
        folder.mkdir()
        (folder / "bad.yaml").write_bytes(text.encode())
        commands[name] = Command(("check", "-c", "bad.yaml", *further.get(name, ())), folder)
    for number in range(1, 1000):
        (base / "many_files" / f"c{number}.yaml").write_text(
            f"extends: c{number + 1}\n", encoding="utf-8"
        )
    return bench(commands, cold=True)


@pytest.mark.parametrize("name", CARETS)
def test_carets_stand_under_the_value(name: str, answers_to_odd: dict[str, Judgement]) -> None:
    _, line, column, num_carets = CARETS[name]
    said = answers_to_odd[name].err.split("error: trainer.max_epochs")[1].splitlines()
    assert said[2] == f"    1 | {line}"
    assert said[3] == "      | " + " " * column + "^" * num_carets


def test_a_long_line_is_cut_around_its_caret(answers_to_odd: dict[str, Judgement]) -> None:
    said = answers_to_odd["long line"].err.split("error: run.name: ")[1].splitlines()
    assert len(said[2]) <= 170
    start = said[3].index("^")
    assert said[2][start : start + 3] == "[1]"


def test_what_a_terminal_would_obey_does_not_reach_it(answers_to_odd: dict[str, Judgement]) -> None:
    found = answers_to_odd["terminal"]
    assert found.code == 2
    assert found.err.count("error: ") == 6
    assert all(letter.isprintable() for letter in found.err.replace("\n", ""))
    assert r"trainer.max\x1b[31m" in found.err


def test_a_long_flag_is_reported_in_a_few_words(answers_to_odd: dict[str, Judgement]) -> None:
    found = answers_to_odd["long flags"]
    assert found.code == 2
    assert "trainer.max_epochs: expected an integer or null, got 'xxx" in found.err
    assert "unexpected argument '-yyy" in found.err
    assert len(found.err) < 5_000


def test_a_thousand_files_that_extend_one_another_are_an_error(
    answers_to_odd: dict[str, Judgement],
) -> None:
    found = answers_to_odd["many files"]
    assert found.code == 2
    assert "more than 100 files extend one another" in found.err
    assert len(found.err.splitlines()) < 10


# -- what is no mistake ----------------------------------------------------------------------------

LAYERS = [CONFIGS / "base.yaml", *sorted(CONFIGS.glob("*/*.yaml"))]
RUNNABLE = sorted({*CONFIGS.glob("*.yaml")} - {*LAYERS})
KNOWN = [*RUNNABLE, *LAYERS]
"""Configs that name classes of lightkit's and Lightning's alone."""
NEEDS = {
    "accelerator/gpu": "accelerator.gpus",
    "accelerator/horovod": "horovod",
    "accelerator/tpu": "accelerator.tpu_cores",
    "accelerator/ray": "ray",
    "accelerator/spark": "spark",
    "logger/comet": "comet",
}
"""What the one mistake of those layers is about where the machine lacks what they need."""
OWN = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Callable, Optional, TypedDict, Union
from pytorch_lightning import LightningModule

@dataclass
class Inner:
    z: int
    w: str = "a"

@dataclass
class Required:
    a: int
    inner: Inner
    b: float = 1.0

@dataclass
class Options:
    k: int = 3

class Typed(TypedDict):
    p: int

class Part:
    def __init__(self, p: int = 1) -> None: ...

class Adapter:
    def __init__(self, width: int, height: int, gain: float = 1.0) -> None: ...

class Own(LightningModule):
    def __init__(
        self,
        required: Required,
        options: Options = Options(),
        maybe: Optional[Options] = None,
        typed: Optional[Typed] = None,
        several: Optional[list[Options]] = None,
        parts: Optional[list[Union[Part, str]]] = None,
        either: Union[list[int], list[Part], None] = None,
        h: int = 3,
        adapter: Callable[[int, int], Adapter] = Adapter,
    ) -> None:
        super().__init__()
"""
NEEDED = {"required": {"a": 1, "inner": {"z": 1}}}
TAKEN = {
    "what is needed": NEEDED,
    "a dataclass as a class": {
        **NEEDED,
        "options": {"class_path": "own.Options", "init_args": {"k": 4}},
    },
    "a field of a field": {"required": {"a": 1, "inner": {"z": 1, "w": "b"}}, "options": {"k": 4}},
    "optional dataclasses": {**NEEDED, "maybe": {"k": 4}, "several": [{"k": 1}], "typed": {"p": 3}},
    "a list of classes": {
        **NEEDED,
        "parts": [{"class_path": "own.Part", "init_args": {"p": 1}}, "text"],
    },
    "a list of numbers": {**NEEDED, "either": [1, 2]},
    "a list of the second": {
        **NEEDED,
        "either": [{"class_path": "own.Part", "init_args": {"p": 1}}],
    },
}
CHOSEN: tuple[dict[str, str | None], ...] = (
    {"backbone": "small_cnn", "weights": "net.pth"},
    {"backbone": "timm/resnet18", "weights": None},
    {"backbone": "resnet18", "weights": "default"},
)
"""Choices and a file of `ImageClassifier`."""
WRONG = {
    "parts": [{"class_path": "own.Part", "init_args": {"q": 3}}],
    "h": "x",
    # right: it is called with two numbers
    "adapter": {"class_path": "own.Adapter", "init_args": {"gain": 2.0}},
}


@pytest.fixture(scope="module")
def answers_to_right(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Judgement]:
    """What is said of the configs that come with lightkit.

    Also of classes of a user's with arguments of many types.
    """
    folder = tmp_path_factory.mktemp("right")
    # the table that configs/flowers_delta.yaml names
    (folder / "data" / "flowers_delta").mkdir(parents=True)
    for number in range(40):  # likewise of configs/text.yaml
        file = folder / "data" / "texts" / "ab"[number % 2] / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"text {number}", encoding="utf-8")
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    hooks = dict.fromkeys(
        ("SLACK_WEBHOOK_URL", "WEBHOOK_URL", "HEARTBEAT_URL"), "https://hooks.example.com/night"
    )
    files: dict[str, tuple[str, ...]] = {str(file): ("-c", str(file)) for file in RUNNABLE}
    files |= {str(file): ("-c", str(CONFIGS / "flowers.yaml"), "-c", str(file)) for file in LAYERS}
    for number, (name, arguments) in enumerate({**TAKEN, "wrong parts": WRONG}.items()):
        config = {"model": {"class_path": "own.Own", "init_args": arguments}}
        (folder / f"{number}.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        files[name] = ("-c", f"{number}.yaml")
    (folder / "net.pth").touch()
    for number, arguments in enumerate(CHOSEN):
        chosen = {
            "model": {"class_path": "ImageClassifier", "init_args": arguments},
            "data": "DrawnFlowers",
        }
        (folder / f"chosen{number}.yaml").write_text(yaml.safe_dump(chosen), encoding="utf-8")
        files[f"chosen {number}"] = ("-c", f"chosen{number}.yaml")
    commands = {name: Command(("check", *words), folder, hooks) for name, words in files.items()}
    commands["test"] = Command(
        ("check", "test", *files["chosen 0"], "--model.weights=nope.pth"), folder
    )
    cold = {str(file): commands.pop(str(file)) for file in KNOWN}
    full = {
        f"full {file}": replace(cold[file], words=(*cold[file].words, "--full")) for file in cold
    }
    return bench(cold, cold=True) | bench({**commands, **full})


@pytest.mark.parametrize("file", RUNNABLE, ids=lambda file: file.stem)
def test_no_shipped_config_has_an_error(file: Path, answers_to_right: dict[str, Judgement]) -> None:
    found = answers_to_right[str(file)]
    assert (found.code, found.err, found.is_as_before) == (0, "", True)
    assert found.out.startswith("no mistakes found")


@pytest.mark.parametrize("file", KNOWN, ids=lambda file: f"{file.parent.name}_{file.stem}")
def test_the_schema_and_jsonargparse_agree_on_a_shipped_config(
    file: Path, answers_to_right: dict[str, Judgement]
) -> None:
    """The first answer is that of a process that cannot import torch."""
    cold, full = answers_to_right[str(file)], answers_to_right[f"full {file}"]
    assert (cold.code, cold.out, cold.err) == (full.code, full.out, full.err)


@pytest.mark.parametrize("file", RUNNABLE, ids=lambda file: file.stem)
def test_a_shipped_config_opens_with_its_command(file: Path) -> None:
    comments = file.read_text(encoding="utf-8").partition("\n\n")[0]
    assert f"lightkit fit -c configs/{file.name}" in comments


@pytest.mark.parametrize("file", LAYERS, ids=lambda file: f"{file.parent.name}_{file.stem}")
def test_no_shipped_layer_has_an_error(file: Path, answers_to_right: dict[str, Judgement]) -> None:
    found = answers_to_right[str(file)]
    if found.code and (needs := NEEDS.get(f"{file.parent.name}/{file.stem}")):
        assert needs in found.err
        assert found.err.count("error: ") == 1
    else:
        assert (found.code, found.err) == (0, "")


@pytest.mark.parametrize("name", TAKEN)
def test_arguments_that_jsonargparse_takes_are_accepted(
    name: str, answers_to_right: dict[str, Judgement]
) -> None:
    assert (answers_to_right[name].code, answers_to_right[name].err) == (0, "")


@pytest.mark.parametrize("name", [*(f"chosen {number}" for number in range(len(CHOSEN))), "test"])
def test_choices_and_files_that_a_class_names_are_right(
    name: str, answers_to_right: dict[str, Judgement]
) -> None:
    assert (answers_to_right[name].code, answers_to_right[name].err) == (0, "")


def test_wrong_arguments_deep_in_own_classes_are_reported_together(
    answers_to_right: dict[str, Judgement],
) -> None:
    found = answers_to_right["wrong parts"]
    assert found.code == 2
    assert found.err.count("error: ") == 3
    assert re.search(r"error: model.*needs required", found.err)
    assert re.search(r"error: model\.init_args\.h: expected an integer, got 'x'", found.err)
    assert re.search(
        r"error: model\.init_args\.parts\.0\.init_args\.q: .*no such argument", found.err
    )
