"""What layers refuse, with the place and a hint: read off `lightkit check`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from tests.contract.command_table import Command, Ended, run_commands
from tests.contract.conftest import Once

NET = "model: {class_path: my_project.Net, init_args: {hidden: 9}}\ndata: my_project.Points\n"


@dataclass(frozen=True)
class Mistake:
    """A config that is refused.

    Args:
        text: Content of `top.yaml`, which the command gets.
        says: Regular expressions that match what standard error says, in order.
        flags: Words of the command line.
        files: Other files.
        environ: Variables.
    """

    text: str
    says: Sequence[str]
    flags: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)


EXTENDS = {
    "a_cycle_names_its_chain": Mistake(
        NET + "extends: b",
        [r"top\.yaml extends b\.yaml extends c\.yaml extends b\.yaml", r"--> c\.yaml:1:10"],
        files={"b.yaml": "extends: c", "c.yaml": "extends: b"},
    ),
    "itself": Mistake(
        NET + "extends: top", [r"top\.yaml extends top\.yaml", r"--> top\.yaml:3:10"]
    ),
    "a_missing_file_names_the_near_one": Mistake(
        NET + "extends: [flowrs]",
        [r"top\.yaml extends 'flowrs'", "flowers", r"--> top\.yaml:3:11"],
        files={"flowers.yaml": ""},
    ),
    "a_missing_file_deep_in_the_chain": Mistake(
        NET + "extends: sub/one",
        [r"'two'", r"--> sub/one\.yaml:1:10"],
        files={"sub/one.yaml": "extends: two"},
    ),
    "not_at_the_top_of_a_file": Mistake(
        NET + "fit: {extends: base}", [r"extends", r"--> top\.yaml:3:16"]
    ),
    "by_a_flag": Mistake(NET, [r"extends", r"--> extends=base"], flags=["extends=base"]),
}
KEYS = {
    "a_key_twice_shows_both_places": Mistake(
        NET + "trainer:\n  max_epochs: 1\n  min_epochs: 1\n  max_epochs: 2\n",
        ["max_epochs.* twice", r"--> top\.yaml:4:3", r"--> top\.yaml:6:3"],
    ),
    "a_key_twice_in_a_flag": Mistake(
        NET,
        ["max_epochs.* twice", "--> --trainer="],
        flags=["--trainer={max_epochs: 1, max_epochs: 2}"],
    ),
    "an_abbreviated_flag": Mistake(
        NET,
        [r"trainer\.max_epoch: .*did you mean 'max_epochs'", r"--> --trainer\.max_epoch=3"],
        flags=["--trainer.max_epoch=3"],
    ),
    "an_abbreviated_section": Mistake(
        NET, [r"train\b", "did you mean 'trainer"], flags=["--train.max_epochs=3"]
    ),
    "an_abbreviated_variable": Mistake(
        NET,
        [
            r"trainer\.max_epoch: ",
            "did you mean 'max_epochs'",
            "--> environment variable LIGHTKIT_TRAINER__MAX_EPOCH",
        ],
        environ={"LIGHTKIT_TRAINER__MAX_EPOCH": "3"},
    ),
    "a_key_with_an_empty_part": Mistake(NET, [r"a\.\.b=1"], flags=["a..b=1"]),
    "appending_to_a_number_shows_both_places": Mistake(
        "extends: base\nmodel:\n  hidden+: [1]",
        [r"model\.init_args\.hidden\+? .*list.* 9", r"--> top\.yaml:3:12", r"--> base\.yaml:1:57"],
        files={"base.yaml": NET},
    ),
    "a_python_object": Mistake(
        NET + "run: {name: !!python/object/apply:os.system [touch hacked]}",
        ["tag !!python/object/apply:os.system", r"--> top\.yaml:3:13"],
    ),
    "a_list_at_the_top": Mistake("- 1", ["mapping", "list"]),
    "no_yaml": Mistake("model: [", [r"top\.yaml", "YAML"]),
    "no_utf8": Mistake("model: \udcff", [r"top\.yaml", "UTF-8"]),
}
ENTRIES = {
    "an_unknown_name_tells_the_near_one": Mistake(
        NET + "callbacks:\n  early_stoping: {patience: 1}",
        [
            r"callbacks\.early_stoping",
            "did you mean 'early_stopping'",
            "class_path",
            r"--> top\.yaml:4:3",
        ],
    ),
    "a_list_of_entries_belongs_to_the_trainer": Mistake(
        NET + "callbacks: [EarlyStopping]",
        ["callbacks: .*mapping.*got", r"trainer\.callbacks", r"--> top\.yaml:3:12"],
    ),
    "an_entry_that_is_true": Mistake(
        NET + "logger: {csv: true}", [r"logger\.csv: .*got True", r"--> top\.yaml:3:15"]
    ),
}
REFERENCES = {
    "to_nothing": Mistake(
        NET + "run: {name: '${trainer.max_epoch}'}\ntrainer: {max_epochs: 3}",
        [
            r"run\.name: .*\$\{trainer\.max_epoch\}",
            r"did you mean 'trainer\.max_epochs'",
            r"--> top\.yaml:3:13",
        ],
    ),
    "to_each_other": Mistake(
        NET + "run: {name: '${run.root}', root: '${run.name}'}",
        [r"cannot resolve|refer", r"--> top\.yaml:3:13", r"--> top\.yaml:3:34"],
    ),
    "to_a_variable_that_is_not_set": Mistake(
        NET + "run: {name: '${oc.env:NOPE}'}",
        [r"run\.name: .*NOPE is not set", r"--> top\.yaml:3:13"],
    ),
    "that_is_no_valid_one": Mistake(
        NET + "run: {name: '${'}", [r"run\.name", r"--> top\.yaml:3:13"]
    ),
}
DOUBLED = "".join(f"k{i}: '${{k{i + 1}}}${{k{i + 1}}}'\n" for i in range(40)) + "k40: x\n"
TENFOLD = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(8)
)
LIMITS = {
    "of_1_mb": Mistake(NET + "# " + "x" * 1_000_000, [r"top\.yaml: .*(1000 kB|1 MB)"]),
    "of_100_levels": Mistake(
        NET + "x: " + "[" * 101 + "]" * 101, [r"100 levels", r"--> top\.yaml:3:"]
    ),
    "of_100_levels_in_a_flag": Mistake(NET, ["100 levels"], flags=["--x=" + "[" * 101 + "]" * 101]),
    "of_20000_values_with_aliases": Mistake(NET + TENFOLD, [r"20,?000 values", r"--> top\.yaml:"]),
    "of_what_interpolations_reach": Mistake(
        NET + DOUBLED, [r"k0: .*20,?000 values", r"--> top\.yaml:"]
    ),
}
MISTAKES = {
    **{f"extends_{name}": error_at for name, error_at in EXTENDS.items()},
    **{f"key_{name}": error_at for name, error_at in KEYS.items()},
    **{f"entry_{name}": error_at for name, error_at in ENTRIES.items()},
    **{f"reference_{name}": error_at for name, error_at in REFERENCES.items()},
    **{f"limit_{name}": error_at for name, error_at in LIMITS.items()},
}
WITHIN = {
    "files": Mistake(
        NET + f"extends: [{', '.join(f'f{i}' for i in range(199))}]",
        [],
        files={f"f{i}.yaml": "" for i in range(199)},
    ),
    "almost_1_mb": Mistake(NET + "# " + "x" * 990_000, []),
    "many_references_to_one_value": Mistake(
        NET + "run: {root: r}\nmodel.name: '" + "${run.root} {} " * 500 + "'", []
    ),
}


@pytest.fixture(scope="module")
def checked(made_once: Once) -> dict[str, Ended]:
    """What `lightkit check` says of each."""
    commands = {
        name: Command(
            ["check", "-c", "top.yaml", *each.flags],
            {"top.yaml": each.text, **each.files},
            each.environ,
        )
        for name, each in {**MISTAKES, **WITHIN}.items()
    }
    return run_commands("layers-mistakes", commands, made_once)


def assert_refused(name: str, checked: Mapping[str, Ended]) -> None:
    """Assert exit code 2, nothing on standard output, and that standard error is as it should."""
    ended = checked[name].result
    assert (ended.code, ended.out) == (2, "")
    assert "Traceback" not in ended.err
    assert re.search(".*".join(MISTAKES[name].says), ended.err, re.DOTALL), ended.err


def of_kind(kind: str) -> pytest.MarkDecorator:
    """Parametrise over the mistakes of one kind."""
    names = [name for name in MISTAKES if name.startswith(kind)]
    return pytest.mark.parametrize("name", names, ids=[name.removeprefix(kind) for name in names])


@of_kind("extends_")
def test_a_wrong_extends_is_refused_with_the_chain_and_near_names(
    name: str, checked: dict[str, Ended]
) -> None:
    assert_refused(name, checked)


@of_kind("key_")
def test_a_key_that_cannot_be_laid_is_refused_with_its_places(
    name: str, checked: dict[str, Ended]
) -> None:
    assert_refused(name, checked)


def test_no_object_of_a_yaml_tag_is_made(checked: dict[str, Ended]) -> None:
    assert not (checked["key_a_python_object"].folder / "hacked").exists()


@of_kind("entry_")
def test_a_wrong_named_entry_is_refused_with_near_names(
    name: str, checked: dict[str, Ended]
) -> None:
    assert_refused(name, checked)


@of_kind("reference_")
def test_an_interpolation_of_nothing_is_refused_with_its_place(
    name: str, checked: dict[str, Ended]
) -> None:
    assert_refused(name, checked)


@of_kind("limit_")
def test_a_config_beyond_a_limit_is_refused(name: str, checked: dict[str, Ended]) -> None:
    assert_refused(name, checked)


@pytest.mark.parametrize("name", WITHIN)
def test_a_large_config_within_the_limits_is_fine(name: str, checked: dict[str, Ended]) -> None:
    checked[name].result.ok()
