from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytorch_lightning import LightningModule
from pytorch_lightning.cli import LightningArgumentParser
from torch import nn

from lightkit.cli.filling import model_filled
from lightkit.cli.unnamed import UnnamedClass

JSON, FLOW = '{"class_path": "evil_layers.Boom"}', "class_path: evil_layers.Boom"


class Holder(nn.Module):
    """A layer that takes another one."""

    def __init__(self, inner: nn.Module | None = None, weights: str = "") -> None:
        super().__init__()


class TakesAll(LightningModule):
    """Takes layers, functions, text and what has no annotation."""

    def __init__(  # type: ignore[no-untyped-def]
        self,
        head: nn.Module | None = None,
        heads: list[nn.Module] | None = None,
        loss: Callable[..., Any] | None = None,
        options: dict[str, Any] | None = None,
        anything: Any = None,
        text: str = "",
        texts: list[str] | None = None,
        path: os.PathLike[str] | None = None,
        act=None,
        kind=nn.Identity,
    ) -> None:
        super().__init__()


class TakesMore(TakesAll):
    """Takes what the class below it does."""

    def __init__(self, width: int = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)


@pytest.fixture(autouse=True)
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module that leaves a mark where it is imported, and with configs that name it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    mark = tmp_path / "imported"
    source = (
        f"import pathlib\nfrom torch import nn\npathlib.Path({str(mark)!r}).touch()\nclass Boom(nn.Identity): pass\n"
    )
    Path("evil_layers.py").write_text(source)
    Path("a.yaml").write_text(FLOW)
    Path("names.txt").write_text("evil_layers.Boom\n")
    Path("notes.txt").write_text("some words\n")
    Path("weights.pt").write_bytes(bytes(range(256)))
    yield mark
    sys.modules.pop("evil_layers", None)


def _parsed(model: dict[str, Any], below: dict[str, Any]) -> Any:
    """Lay the user's model over a checkpoint's hyper-parameters, and parse it as the commands do."""
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(LightningModule, "model", fail_untyped=False, required=False)
    filled = model_filled(model, below, parser, is_chosen=True, checkpoint="a.ckpt")
    return parser.parse_object({"model": filled}).model


def _given(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": f"{__name__}.{name}", "init_args": arguments}


@pytest.mark.parametrize(
    "below",
    [
        {"head": "evil_layers.Boom"},
        {"head": JSON},
        {"head": FLOW},
        {"head": "a.yaml"},
        {"head": "./a.yaml"},
        {"head": {"class_path": "evil_layers.Boom"}},
        {"head": {"init_args": FLOW}},
        {"heads": [JSON]},
        {"heads": f"[{JSON}]"},
        {"heads": "- " + FLOW},
        {"heads": "names.txt"},
        {"loss": JSON},
        {"options": FLOW},
        {"anything": JSON},
        {"act": JSON},
        {"act": {"class_path": "evil_layers.Boom"}},
        {"act": {"deep": [{"class_path": "evil_layers.Boom"}]}},
        {"act": r'{"class\u005fpath": "evil_layers.Boom"}'},
        {"kind": "evil_layers.Boom"},
        {"head": {"class_path": f"{__name__}.Holder", "init_args": {"inner": FLOW}}},
        {"head": f"{{class_path: {__name__}.Holder, init_args: {{inner: evil_layers.Boom}}}}"},
    ],
    ids=lambda value: ", ".join(f"{key} {text}"[:60] for key, text in value.items()),
)
@pytest.mark.parametrize("model", ["TakesAll", "TakesMore"])
def test_nothing_that_only_a_checkpoint_names_is_imported(model: str, below: dict[str, Any], evil: Path) -> None:
    with pytest.raises(UnnamedClass, match=r"a\.ckpt names .* which no config and no flag names"):
        _parsed(_given(model), {**below, "_class_path": f"{__name__}.{model}"})
    assert not evil.exists()


@pytest.mark.parametrize(
    "below",
    [{"head.class_path": "evil_layers.Boom"}, {"dict_kwargs": {"head": JSON}}],
    ids=["dotted", "dict_kwargs"],
)
def test_what_only_reaches_a_class_with_open_arguments_is_told_there(below: dict[str, Any], evil: Path) -> None:
    _parsed(_given("TakesAll"), dict(below))  # none of its arguments
    with pytest.raises(UnnamedClass):
        _parsed(_given("TakesMore"), {**below, "_class_path": f"{__name__}.TakesMore"})
    assert not evil.exists()


@pytest.mark.parametrize("below", [{"head": JSON}, {"act": FLOW}], ids=["json", "flow"])
def test_the_class_that_the_checkpoint_names_too_changes_nothing(below: dict[str, Any], evil: Path) -> None:
    with pytest.raises(UnnamedClass):
        _parsed(_given("TakesAll"), {**below, "_class_path": f"{__name__}.TakesAll"})
    assert not evil.exists()


@pytest.mark.parametrize("key", ["head", "act"])
def test_the_arguments_of_a_class_that_the_user_names_are_looked_at(key: str, evil: Path) -> None:
    holder = f"{__name__}.Holder"
    lower = {"class_path": holder, "init_args": {"inner": "evil_layers.Boom"}}
    with pytest.raises(UnnamedClass, match=rf"say --model\.{key}\.inner=evil_layers\.Boom"):
        _parsed(_given("TakesAll", **{key: {"class_path": holder}}), {key: lower})
    assert not evil.exists()


def test_a_short_name_of_the_user_stands_for_no_other_class_of_that_name(evil: Path) -> None:
    model = _parsed(_given("TakesAll", head="Hardshrink"), {"head": {"class_path": "evil_layers.Hardshrink"}})
    assert model.init_args.head.class_path == "torch.nn.Hardshrink"
    assert not evil.exists()


@pytest.mark.parametrize(
    "below",
    [
        {"text": FLOW, "texts": [JSON]},
        {"text": "a.yaml", "path": "a.yaml"},
        {"text": "evil_layers.Boom", "act": "evil_layers.Boom"},
        {"act": "note: of mine", "anything": "a: [1, 2]"},
        {"act": "a.yaml", "anything": "weights.pt"},
        {"options": {"norm": "batch", "where": "os.path"}},
        {"act": "[unclosed"},
        {"head": {"class_path": f"{__name__}.Holder", "init_args": {"weights": "weights.pt"}}},
    ],
    ids=["plain", "file", "name", "mapping", "untyped file", "options", "no yaml", "weights"],
)
def test_text_that_names_nothing_is_taken(below: dict[str, Any], evil: Path) -> None:
    head = {"head": f"{__name__}.Holder"} if "head" in below else {}
    model = _parsed(_given("TakesAll", **head), below)
    assert set(below) <= set(model.init_args.__dict__)
    assert not evil.exists()


def test_the_users_own_words_name_what_they_like(evil: Path) -> None:
    assert _parsed(_given("TakesAll", head=JSON), {"head": JSON}).init_args.head.class_path == "evil_layers.Boom"
    assert evil.exists()


def test_what_contains_itself_is_told(evil: Path) -> None:
    with pytest.raises(UnnamedClass, match=r"a\.ckpt names &a \[\*a\] for model\.act"):
        _parsed(_given("TakesAll"), {"act": "&a [*a]"})
