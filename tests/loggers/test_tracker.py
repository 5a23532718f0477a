from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.errors import LightkitError
from lightkit.loggers import MLflow


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # 2026-11: mlflow 3.17 leaves connections open
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")  # 2026-11: mlflow 3.17
def test_a_database_that_cannot_be_made_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    logger = MLflow(f"sqlite:///{tmp_path}/file/mlflow.db")
    with pytest.raises(LightkitError, match=r"does not take this run: .*comes from tracking_uri of the logger MLflow"):
        _ = logger.experiment
