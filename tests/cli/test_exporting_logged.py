"""lightkit export of a model that is logged in MLflow: what is for a run is refused, not passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.cli.export_options import options_in
from lightkit.cli.exporting import export_logged
from lightkit.errors import ConfigError


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def export(*words: str) -> None:
    options, arguments = options_in(["--run", "models:/net@best", *words])
    assert options is not None
    export_logged(options, arguments)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ckpt_path", "x.ckpt"], "--ckpt_path: this has no effect on models:/net@best, a model that is exported"),
        (["-c", "nosuch.yaml"], "-c nosuch.yaml: this has no effect"),
        (["--model.k=3"], "--model.k=3: this has no effect"),
        (["--tracking-uri=sqlite:///x.db"], "--tracking-uri=.* variable MLFLOW_TRACKING_URI says where"),
        (["--print_config"], "--print_config: this has no effect"),
        (["--with-preprocessing"], "--with-preprocessing: this has no effect"),
        (["--input-shape", "1,3"], "--input-shape: this has no effect on models:/net@best, whose inputs are"),
        (["--int8", "--format", "onnx"], "--int8: this has no effect on models:/net@best, which has no training"),
    ],
    ids=["checkpoint", "file", "key", "tracking", "printing", "preprocessing", "shape", "int8"],
)  # fmt: skip
def test_what_has_no_effect_is_refused(words: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{says}"):
        export(*words)
    assert list(tmp_path.iterdir()) == []


def test_without_a_database_in_the_run_root_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no database of MLflow at .*/there/mlflow\.db; .*--run\.root or"):
        export("--run.root=there")
    assert list(tmp_path.iterdir()) == []
