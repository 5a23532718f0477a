"""Every rule of layering, as a table: files, variables and flags go in, values come out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli.command_table import parse
from lightkit.config import Resolved, resolve
from lightkit.config.tree import Node, find, to_plain
from lightkit.errors import ConfigError

EARLY_STOPPING = "pytorch_lightning.callbacks.EarlyStopping"


@dataclass
class Rule:
    """One line of the table.

    Args:
        layers: Texts of the files given with ``-c``, in order.
        becomes: Values expected.
        files: Further files by name.
        environ: Variables.
        flags: Words of the command line.
        subcommand: Subcommand that runs.
        class_sections: Top-level classes.
    """

    layers: list[str]
    becomes: dict[Any, Any]
    files: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    subcommand: str = "fit"
    class_sections: tuple[str, ...] = ("model", "data", "optimizer", "lr_scheduler")

    def resolved(self, folder: Path) -> Resolved:
        for name, text in {
            **{f"layer{i}.yaml": text for i, text in enumerate(self.layers)},
            **self.files,
        }.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return resolve(
            [folder / f"layer{i}.yaml" for i in range(len(self.layers))],
            flags=parse(["fit", *self.flags]).overrides,
            environ=self.environ,
            subcommand=self.subcommand,
            subcommands=("fit", "test"),
            class_sections=self.class_sections,
        )


NET = "model: {class_path: my.Net, init_args: {hidden: 8, depth: 2}}"
STOPPING = "callbacks: {early_stopping: {patience: 3}}"
STOPPED = {"class_path": EARLY_STOPPING, "init_args": {"patience": 3}}

RULES = {
    "files-in-order": Rule(["a: 1\nb: 1", "a: 2"], {"a": 2, "b": 1}),
    "variables-over-files": Rule(["a: {b: 1}"], {"a": {"b": "2"}}, environ={"LIGHTKIT_A__B": "2"}),
    "variables-top-level": Rule([], {"seed_everything": "3"},
                                environ={"LIGHTKIT_SEED_EVERYTHING": "3"}),
    "variables-lists": Rule(["a: [1]"], {"a": [2, 0.001]}, environ={"LIGHTKIT_A": "[2, 1e-3]"}),
    "variables-find-the-case-of-keys": Rule(["a: {T_max: 1}"], {"a": {"T_max": "2"}},
                                            environ={"LIGHTKIT_A__T_MAX": "2"}),
    "variables-section-before-its-keys": Rule(
        [NET],
        {"model": {"class_path": "Other", "init_args": {"hidden": "3"}}},
        environ={"LIGHTKIT_MODEL__HIDDEN": "3", "LIGHTKIT_MODEL": "Other"},
    ),
    "variables-reserved": Rule(["a: 1"], {"a": 1},
                               environ={"LIGHTKIT_DATA": "/photos", "HOME": "/x"}),
    "flags-over-variables": Rule(["a: 1"], {"a": "3"}, environ={"LIGHTKIT_A": "2"},
                                 flags=["--a=3"]),
    "flags-spaced": Rule(["a: {b: 1}"], {"a": {"b": "-3"}}, flags=["--a.b", "-3"]),
    "flags-bare": Rule(["a: {b: 1}"], {"a": {"b": "x=y"}}, flags=["a.b=x=y"]),
    "flags-last-wins": Rule([], {"a": "2"}, flags=["a=1", "--a=2"]),
    "flags-scalars-stay-text": Rule([], {"a": "123", "b": "1e-3", "c": "true"},
                                    flags=["a=123", "b=1e-3", "c=true"]),
    "flags-braces-of-a-file-name-stay-text": Rule([], {"a": "{epoch}", "b": "{epoch:02d}-{step}"},
                                                  flags=["a={epoch}", "b={epoch:02d}-{step}"]),
    "flags-titles-stay-text": Rule([], {"a": "Flowers: five", "b": "[half"},
                                   flags=["a=Flowers: five", "b=[half"]),
    "flags-collections-are-yaml": Rule([], {"a": {"b": [1, None]}, "c": None},
                                       flags=["a={b: [1, null]}", "c=null"]),
    "flags-empty-value": Rule(["a: 1"], {"a": ""}, flags=["--a="]),
    "flags-append": Rule(["a: {b: [1]}"], {"a": {"b": [1, "2", 3, 4]}},
                         flags=["--a.b+=2", "a.b+=[3, 4]"]),
    "flags-reach-into-the-last-element": Rule(
        ["trainer: {callbacks: [Timer]}"],
        {"trainer": {"callbacks": ["Timer",
                                   {"class_path": "EarlyStopping",
                                    "init_args": {"patience": "5"}}]}},
        flags=["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.patience=5"],
    ),
    "flags-reach-into-what-was-appended-to-nothing": Rule(
        [],
        {
            "trainer": {
                "callbacks+": [
                    {"class_path": "A", "init_args": {"x": "1"}},
                    {"class_path": "B", "init_args": {"x": "2", "y": "3"}},
                ]
            }
        },
        flags=[
            "trainer.callbacks+=A", "trainer.callbacks.x=1",
            "trainer.callbacks+=B", "trainer.callbacks.x=2", "trainer.callbacks.init_args.y=3",
        ],
    ),
    "flags-reach-by-index": Rule(["a: [1, {b: 1}]"], {"a": ["5", {"b": "2"}]},
                                 flags=["a.0=5", "a.1.b=2"]),
    "mappings-merge": Rule(["a: {b: {c: 1, d: 1}}", "a: {b: {d: 2, e: 2}}"],
                           {"a": {"b": {"c": 1, "d": 2, "e": 2}}}),
    "scalars-replace": Rule(["a: 1", "a: two"], {"a": "two"}),
    "lists-replace": Rule(["a: [1, 2]", "a: [3]"], {"a": [3]}),
    "null-removes-a-mapping": Rule(["a: {b: 1}", "a: null"], {"a": None}),
    "mapping-after-null-starts-anew": Rule(["a: {b: 1}", "a: null", "a: {c: 1}"], {"a": {"c": 1}}),
    "append": Rule(["a: {b: [1]}", "a: {b+: [2, 3]}", "a: {b+: 4}"], {"a": {"b": [1, 2, 3, 4]}}),
    "append-within-one-file": Rule(["a+: [2]\na: [1]"], {"a": [1, 2]}),
    "append-to-null": Rule(["a: null", "a+: [1]"], {"a": [1]}),
    "append-nothing": Rule(["a: [1]", "a+:"], {"a": [1]}),
    "append-to-one-class": Rule(
        ["trainer: {callbacks: {class_path: A}}", "trainer: {callbacks+: B}"],
        {"trainer": {"callbacks": [{"class_path": "A"}, "B"]}},
    ),
    "append-kept-without-a-list-below": Rule(["a+: [1]", "a+: [2]"], {"a+": [1, 2]}),
    "append-then-replace": Rule(["a+: [1]", "a: [2]"], {"a": [2]}),
    "new-class-drops-arguments": Rule(
        [NET + "\nx: 1", "model: {class_path: Other, init_args: {depth: 3}}"],
        {"model": {"class_path": "Other", "init_args": {"depth": 3}}, "x": 1},
    ),
    "a-word-over-a-class": Rule(
        ["trainer: {strategy: {class_path: A, init_args: {x: 1}}}", "trainer: {strategy: ddp}"],
        {"trainer": {"strategy": "ddp"}},
    ),
    "a-class-by-name-over-a-class": Rule(
        ["trainer: {strategy: {class_path: A, init_args: {x: 1}}}", "trainer: {strategy: B}"],
        {"trainer": {"strategy": {"class_path": "B"}}},
    ),
    "a-word-for-one-key-of-a-mapping": Rule(
        ["accelerator: {gpus: 2}", "accelerator: cpu", "accelerator: {precision: 16}"],
        {
            "accelerator": {"gpus": 2, "kind": "cpu", "precision": 16},
            "trainer": {"accelerator": "cpu", "devices": None, "precision": "16-mixed"},
        },
    ),
    "null-over-a-word": Rule(
        ["accelerator: cpu", "accelerator: null"],
        {"accelerator": None, "trainer": {"accelerator": None}}
    ),
    "new-class-by-name": Rule([NET, "model: Other"], {"model": {"class_path": "Other"}}),
    "new-class-drops-dict-kwargs": Rule(
        ["model: {class_path: A, dict_kwargs: {x: 1}}", "model: {class_path: B}"],
        {"model": {"class_path": "B"}}
    ),
    "new-class-deep": Rule(
        ["trainer: {strategy: {class_path: A, init_args: {x: 1}}}",
         "trainer: {strategy: {class_path: B}}"],
        {"trainer": {"strategy": {"class_path": "B"}}},
    ),
    "same-class-keeps-arguments": Rule(
        [NET, "model: {class_path: my.Net, init_args: {depth: 3}}"],
        {"model": {"class_path": "my.Net", "init_args": {"hidden": 8, "depth": 3}}},
    ),
    "same-class-spelled-short": Rule(
        ["optimizer: {class_path: torch.optim.Adam, init_args: {lr: 1}}",
         "optimizer: {class_path: Adam, init_args: {eps: 2}}"],
        {"optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 1, "eps": 2}}},
    ),
    "same-class-spelled-long": Rule(
        ["optimizer: {class_path: Adam, init_args: {lr: 1}}", "optimizer: torch.optim.Adam"],
        {"optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 1}}},
    ),
    "same-last-name-elsewhere-is-another-class": Rule([NET, "model: your.Net"],
                                                      {"model": {"class_path": "your.Net"}}),
    "shorthand-of-a-layer": Rule(
        [NET, "model: {hidden: 16}"],
        {"model": {"class_path": "my.Net", "init_args": {"hidden": 16, "depth": 2}}}
    ),
    "shorthand-of-a-flag": Rule(
        ["optimizer: {class_path: Adam}"],
        {"optimizer": {"class_path": "Adam", "init_args": {"lr": "0.1"}}},
        flags=["--optimizer.lr", "0.1"],
    ),
    "shorthand-deep": Rule(
        ["model: {class_path: A, init_args: {body: {class_path: B}}}"],
        {"model": {"class_path": "A",
                   "init_args": {"body": {"class_path": "B", "init_args": {"depth": "3"}}}}},
        flags=["--model.body.depth=3"],
    ),
    "shorthand-before-the-class": Rule(
        ["model: {hidden: 3}", "model: Net"],
        {"model": {"class_path": "Net", "init_args": {"hidden": 3}}}
    ),
    "shorthand-beside-the-class": Rule(
        ["model: {class_path: Net, hidden: 3, init_args: {hidden: 1, depth: 2}}"],
        {"model": {"class_path": "Net", "init_args": {"hidden": 3, "depth": 2}}},
    ),
    "shorthand-of-a-class-by-name": Rule(
        ["trainer: {logger: A}"],
        {"trainer": {"logger": {"class_path": "A", "init_args": {"name": "x"}},
                     "strategy": {"class_path": "B", "init_args": {"y": "1"}}}},
        flags=["trainer.logger.name=x", "trainer.strategy=B", "trainer.strategy.y=1"],
    ),
    "shorthand-append": Rule(
        ["model: {class_path: Net, init_args: {sizes: [1]}}"],
        {"model": {"class_path": "Net", "init_args": {"sizes": [1, "2"]}}},
        flags=["model.sizes+=2"],
    ),
    "shorthand-of-nested-class-by-name": Rule(
        ["trainer: {strategy: {class_path: a.DDP, init_args: {x: 1}}}", "trainer: {strategy: DDP}"],
        {"trainer": {"strategy": {"class_path": "a.DDP", "init_args": {"x": 1}}}},
    ),
    "no-class-anywhere-passes": Rule(["model: {hidden: 3}", "model: {depth: 2}"],
                                     {"model": {"hidden": 3, "depth": 2}}),
    "arguments-below-without-class": Rule(
        ["model: {init_args: {hidden: 3}}", "model: {depth: 2}"],
        {"model": {"init_args": {"hidden": 3, "depth": 2}}}
    ),
    "fixed-class-passes": Rule(
        ["model: {hidden: 3}"], {"model": {"hidden": 3, "depth": "2"}}, class_sections=(),
        flags=["--model.depth=2"]
    ),
    "extends-one": Rule(["extends: base\na: 2"], {"a": 2, "b": 1},
                        files={"base.yaml": "a: 1\nb: 1"}),
    "extends-with-suffix": Rule(["extends: base.yaml"], {"a": 1}, files={"base.yaml": "a: 1"}),
    "extends-in-order": Rule(
        ["extends: [base, logger/x]\nc: 3"], {"a": 2, "b": 1, "c": 3},
        files={"base.yaml": "a: 1\nb: 1\nc: 1", "logger/x.yaml": "a: 2"},
    ),
    "extends-relative-to-the-file-that-says-it": Rule(
        ["extends: sub/one"], {"a": 1},
        files={"sub/one.yaml": "extends: ../two", "two.yaml": "a: 1"}
    ),
    "extends-shared-base-once": Rule(
        ["extends: [b, c]"], {"x": "b"},
        files={"base.yaml": "x: base", "b.yaml": "extends: base\nx: b", "c.yaml": "extends: base"},
    ),
    "extends-nothing": Rule(["extends: []\na: 1", "extends:\nb: 1"], {"a": 1, "b": 1}),
    "entries-take-their-class-from-their-name": Rule([STOPPING],
                                                     {"callbacks": {"early_stopping": STOPPED}}),
    "entries-by-class-name": Rule(["callbacks: {mine: my.Callback}"],
                                  {"callbacks": {"mine": {"class_path": "my.Callback"}}}),
    "entries-empty": Rule(["logger: {csv: {}}"],
                          {"logger": {"csv": {"class_path": "lightkit.loggers.CSV"}}}),
    "entries-change": Rule(
        [STOPPING, "callbacks: {early_stopping: {init_args: {min_delta: 0.1}}}"],
        {"callbacks": {"early_stopping": {"class_path": EARLY_STOPPING,
                                          "init_args": {"patience": 3, "min_delta": 0.1}}}},
    ),
    "entries-add": Rule(
        [STOPPING, "callbacks: {checkpoint: {}}"],
        {"callbacks": {"early_stopping": STOPPED,
                       "checkpoint": {"class_path": "lightkit.callbacks.Checkpoint"}}},
    ),
    "entries-remove": Rule([STOPPING, "callbacks: {early_stopping: null}"],
                           {"callbacks": {"early_stopping": None}}),
    "entries-remove-by-flag": Rule(
        [STOPPING], {"callbacks": {"early_stopping": None}},
        flags=["--callbacks.early_stopping=null"]
    ),
    "entries-return": Rule(
        ["callbacks: {early_stopping: {min_delta: 1}}", "callbacks: {early_stopping: null}",
         STOPPING],
        {"callbacks": {"early_stopping": STOPPED}},
    ),
    "entries-new-class": Rule(
        [STOPPING, "callbacks: {early_stopping: {class_path: my.Stop, x: 1}}", STOPPING],
        {"callbacks": {"early_stopping": {"class_path": "my.Stop",
                                          "init_args": {"x": 1, "patience": 3}}}},
    ),
    "subcommand-block-over-the-top": Rule(
        ["a: {x: 1, y: 1}\nfit: {a: {x: 2}}\ntest: {a: {x: 3}}"], {"a": {"x": 2, "y": 1}}
    ),
    "subcommand-block-of-another": Rule(["fit: {a: 1}\ntest: {a: 3}"], {"a": 3}, subcommand="test"),
    "subcommand-block-empty": Rule(["a: 1\nfit:"], {"a": 1}),
    "section-file": Rule(["model: m.yaml\na: 1"], {"model": {"class_path": "Net"}, "a": 1},
                         files={"m.yaml": "class_path: Net"}),
    "section-file-that-extends": Rule(
        ["callbacks: sub/c.yaml"],
        {"callbacks": {"early_stopping": STOPPED, "x": {"class_path": "X"}}},
        files={"sub/c.yaml": "extends: d\nx: X", "sub/d.yaml": "early_stopping: {patience: 3}"},
    ),
    "section-file-keeps-a-class-below": Rule(
        ["callbacks: {early_stopping: Mine}", "callbacks: c.yaml"],
        {"callbacks": {"early_stopping": {"class_path": "Mine", "init_args": {"patience": 3}}}},
        files={"c.yaml": "early_stopping: {patience: 3}"},
    ),
    "section-file-in-a-block": Rule(["fit: {trainer: t.yaml}"], {"trainer": {"x": 1}},
                                    files={"t.yaml": "x: 1"}),
    "interpolation-other-keys": Rule(
        ["a: {b: 1}\nc: '${a.b}'\nd: 'x${a.b}'\ne: ['${a}', 2]"],
        {"a": {"b": 1}, "c": 1, "d": "x1", "e": [{"b": 1}, 2]}
    ),
    "interpolation-after-all-layers": Rule(["a: 1\nb: ${a}", "a: 2"], {"a": "3", "b": "3"},
                                           flags=["a=3"]),
    "interpolation-environment": Rule(
        ["a: ${oc.env:X}\nb: ${oc.env:Y,7}\nc: '${oc.env:Y,${oc.env:X}}'"],
        {"a": "1", "b": "7", "c": "1"}, environ={"X": "1"}
    ),
    "interpolation-relative": Rule(["a: {b: 1, c: '${.b}'}"], {"a": {"b": 1, "c": 1}}),
    "interpolation-literal": Rule([r"a: 'x\${b}'" + "\nb: 1\nc: ${b}"],
                                  {"a": "x${b}", "b": 1, "c": 1}),
    "interpolation-odd-keys": Rule(["x.y: ${b}\n1: ${b}\nb: 2\nc: {true: 1}"],
                                   {"x": {"y": 2}, 1: 2, "b": 2, "c": {True: 1}}),
    "interpolation-leaves-types": Rule(["a: 1.0\nb: ${a}\nc: '???'\nd: 'a$b'"],
                                       {"a": 1.0, "b": 1.0, "c": "???", "d": "a$b"}),
    "interpolation-class": Rule(
        ["model: ${oc.env:NET}\n"], {"model": {"class_path": "Net", "init_args": {"x": "1"}}},
        environ={"NET": "Net"}, flags=["model.x=1"],
    ),
    "interpolation-class-elsewhere": Rule(["a: Net\nmodel: ${a}\n"],
                                          {"a": "Net", "model": {"class_path": "Net"}}),
    "scalars-as-jsonargparse": Rule(
        ["a: 1e-3\nb: 010\nc: yes\nd: 2026-11-20\ne: 1_000\nf: .inf\ng: ~"],
        {"a": 0.001, "b": 8, "c": True, "d": "2026-11-20", "e": 1000, "f": float("inf"), "g": None},
    ),
    "anchors-and-merge-keys": Rule(
        ["a: &a {x: 1, y: 1}\nb: {<<: *a, y: 2}\nc: &c {y: 3, z: 3}\nd: {<<: [*a, *c]}\ne: *a"],
        {
            "a": {"x": 1, "y": 1}, "b": {"x": 1, "y": 2}, "c": {"y": 3, "z": 3},
            "d": {"x": 1, "y": 1, "z": 3}, "e": {"x": 1, "y": 1},
        },
    ),
    "empty-file": Rule(["", "# nothing\n", "---\n"], {}),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_rule(rule: Rule, tmp_path: Path) -> None:
    assert rule.resolved(tmp_path).values == rule.becomes


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_every_value_has_an_origin(rule: Rule, tmp_path: Path) -> None:
    resolved = rule.resolved(tmp_path)
    for path, origin in resolved.origins.items():
        assert str(origin)
        assert origin.render().startswith("  --> ")
        assert resolved.origin_of(path) == origin


def resolved_from(
    folder: Path, *layers: str, flags: tuple[str, ...] = (), **environ: str
) -> Resolved:
    return Rule(list(layers), {}, flags=list(flags), environ=environ).resolved(folder)


def replaced(resolved: Resolved, *path: str) -> tuple[Node, ...]:
    """Give what a value replaced, lowest layer first."""
    node = find(resolved.tree, path)
    assert node is not None
    return node.replaced


def test_each_layer_is_remembered(tmp_path: Path) -> None:
    rule = Rule(
        ["a: {b: 1}", "a: {b: 2}"], {}, environ={"LIGHTKIT_A__B": "3"}, flags=["--a.b", "4"]
    )
    resolved = rule.resolved(tmp_path)
    assert str(resolved.origin_of("a.b")) == "--a.b 4"
    assert [(to_plain(was), str(was.origin)) for was in replaced(resolved, "a", "b")] == [
        (1, f"{tmp_path}/layer0.yaml:1:8"),
        (2, f"{tmp_path}/layer1.yaml:1:8"),
        ("3", "environment variable LIGHTKIT_A__B"),
    ]


def test_a_new_class_remembers_what_its_arguments_replaced(tmp_path: Path) -> None:
    resolved = resolved_from(tmp_path, NET, "model: {class_path: Other, init_args: {depth: 3}}")
    assert [
        (to_plain(was), str(was.origin))
        for was in replaced(resolved, "model", "init_args", "depth")
    ] == [(2, f"{tmp_path}/layer0.yaml:1:59")]


def test_an_entry_removed_remembers_what_it_was(tmp_path: Path) -> None:
    resolved = resolved_from(
        tmp_path, "callbacks: {early_stopping: {patience: 4}}", "callbacks: {early_stopping: null}"
    )
    (was,) = replaced(resolved, "callbacks", "early_stopping")
    assert to_plain(was)["init_args"] == {"patience": 4}
    assert str(was.origin) == f"{tmp_path}/layer0.yaml:1:29"


def test_what_was_replaced_is_the_text_that_was_written_there(tmp_path: Path) -> None:
    resolved = resolved_from(tmp_path, "a: {b: '${oc.env:TOKEN}'}", "a: {b: 2}", TOKEN="hush-hush")
    assert [to_plain(was) for was in replaced(resolved, "a", "b")] == ["${oc.env:TOKEN}"]


@pytest.mark.parametrize(
    ("layers", "flags", "says"),
    [
        (
            ["a: {b: 3}", "a: {b+: [1]}"],
            [],
            "a.b+ appends to a list, but a.b is 3; set a.b to a list first\n"
            "  --> {tmp}/layer1.yaml:1:9\n    1 | a: {{b+: [1]}}\n      |         ^^^\n"
            "  --> {tmp}/layer0.yaml:1:8\n    1 | a: {{b: 3}}\n      |        ^",
        ),
        (
            ["a: []"],
            ["a.x=1"],
            "a.x reaches into a list of 0 elements; append one first, with a+=\n"
            "  --> a.x=1\n  --> {tmp}/layer0.yaml:1:4\n    1 | a: []\n      |    ^^",
        ),
        (["a: [2]"], ["a.x=1"],
         "a.x reaches into a list whose element 0 is 2, not a mapping\n  --> a.x=1"),
        (["a: [2]"], ["a.1=1"], "a.1 reaches into a list of 1 elements"),
        (["b: 1\nmodel: '${b}'"], ["model.x=1"],
         "model.x reaches into model, which is '${{b}}'; set model itself\n"),
        (["callbacks: {none: {patience: 1}}"], [],
         "callbacks.none: there is no class of that name\nnames: checkpoint, "),
        (
            ["callbacks:\n  early_stoping: {}"],
            [],
            "callbacks.early_stoping: there is no class of that name; did you mean "
            "'early_stopping'?\nnames: checkpoint, device_stats, early_stopping, ",
        ),
        (["callbacks: [A]"], [],
         "callbacks: expected a mapping from names to entries, got ['A']; Lightning's own"),
        (["callbacks+: [A]"], [],
         "callbacks+: expected a mapping from names to entries, got ['A']; Lightning's own "
         "value goes under trainer.callbacks+\n"),
        (["logger: {csv: true}"], [],
         "logger.csv: expected a class name, a mapping or null, got True; {{}} takes the"),
        (["fit: [1]"], [], "fit: expected a mapping of what fit sets\n"),
        (["model: modell.yaml"], [],
         "{tmp}/modell.yaml: no such file\n  --> {tmp}/layer0.yaml:1:8\n"),
        (["model: layer9.yaml"], [],
         "{tmp}/layer9.yaml: no such file; did you mean 'layer0.yaml'?\n"),
        ([], ["--a={b: 1, b: 2}"],
         "--a={{b: 1, b: 2}}: the key 'b' stands twice in one mapping\n  --> --a="),
        ([], ["--a=" + "[" * 200],
         "--a=" + "[" * 200 + ": the config has more than 20000 values, or more than"),
        ([], ["callbacks.early_stopping=true"],
         "callbacks.early_stopping: expected a class name, a mapping or null, got 'true'"),
        ([], ["extends=base"],
         "extends: stands at the top of a config file only\n  --> extends=base"),
        (["fit: {extends: base}"], [],
         "extends: stands at the top of a config file only\n  --> {tmp}/layer0.yaml:1:16"),
        ([], ["a..b=1"], "a..b=1: expected keys joined by single dots, such as trainer.max_epochs"),
    ],
    ids=[
        "append-to-a-number", "into-an-empty-list", "into-a-scalar-element", "beyond-a-list",
        "into-an-interpolation", "unknown-entry", "near-entry", "entries-as-list",
        "entries-appended", "entry-is-true", "block-is-a-list", "section-file-missing",
        "section-file-near", "duplicate-in-a-flag", "deep-flag", "entry-is-true-by-flag",
        "extends-by-flag", "extends-in-a-block", "empty-key",
    ],
)  # fmt: skip
def test_errors(layers: list[str], flags: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        resolved_from(tmp_path, *layers, flags=tuple(flags))
    assert str(error.value).startswith(says.format(tmp=tmp_path))


def test_a_variable_with_an_empty_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^LIGHTKIT_A____B: expected keys joined by two underscores"
    ):
        resolved_from(tmp_path, LIGHTKIT_A____B="1")


def test_a_flag_with_a_thousand_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="more than 100 levels"):
        resolved_from(tmp_path, flags=(".".join("a" * 1000) + "=1",))
