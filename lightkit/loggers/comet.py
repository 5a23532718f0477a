"""Comet, through the extra ``comet``; offline its archive lies in the run's folder."""

from __future__ import annotations

import importlib.util
import logging
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from lightning_fabric.loggers.logger import rank_zero_experiment
from lightning_utilities.core.rank_zero import rank_zero_only
from pytorch_lightning.loggers import CometLogger
from torch import Tensor

from lightkit import runs
from lightkit.config import shown_path
from lightkit.errors import ConfigError, LightkitError
from lightkit.loggers.evaluation import EvaluationMetrics, SendsEvaluation


class Comet(SendsEvaluation, CometLogger):
    """Record parameters, metrics and pictures with Comet. Needs ``lightkit-train[comet]``.

    Nothing is opened before the trainer starts. A resumed run continues its experiment. The API key
    comes from ``COMET_API_KEY`` or Comet's own settings file, so that no config needs to hold it.

    Args:
        workspace: Comet workspace; your default one if not given.
        project: Comet project; by default the run's name.
        name: Name of the experiment; by default the run's id.
        experiment_key: Key of the experiment, 32 to 50 letters and digits; by default derived from
            the run's id.
        mode: ``get_or_create`` continues an experiment with this key or starts one, ``get`` only
            continues, ``create`` only starts.
        online: False writes an archive for ``comet upload`` and needs neither a network nor an API
            key.
        offline_directory: Folder of that archive; by default ``comet/`` in the run's folder, or in
            the working directory outside the lightkit command.
        prefix: Put before each metric's name, with an underscore.
    """

    def __init__(
        self,
        workspace: str | None = None,
        project: str | None = None,
        name: str | None = None,
        experiment_key: str | None = None,
        mode: Literal["get_or_create", "get", "create"] | None = None,
        online: bool = True,
        offline_directory: str | None = None,
        prefix: str | None = None,
    ) -> None:
        if importlib.util.find_spec("comet_ml") is None:
            raise ConfigError(
                "The logger Comet needs comet-ml, which is not installed: pip install"
                " 'lightkit-train[comet]'"
            )
        run = runs.current()
        folder = Path(offline_directory or (run.folder / "comet" if run else "comet"))
        key = experiment_key or (run.stable_key if run else None)
        if not online:
            folder.mkdir(parents=True, exist_ok=True)
        if not online and mode == "create" and (folder / f"{key}.zip").exists():
            raise ConfigError(
                f"Comet's mode create would replace the archive {shown_path(folder / f'{key}.zip')}"
                " of this experiment. Leave mode out, or set it to get_or_create, and this stage"
                " has an archive of its own"
            )
        # reports to a third party, offline too
        os.environ.setdefault("COMET_ERROR_TRACKING_ENABLE", "false")
        self._asked_for = False
        self._evaluation = EvaluationMetrics("Comet")
        super().__init__(
            workspace=workspace,
            project=project or (run.name if run else None),
            experiment_key=key,
            mode=mode,
            online=online,
            prefix=prefix,
            name=name or (run.id if run else None),
            offline_directory=str(folder),
            # Comet takes over standard output otherwise, and ends each run with a page of its own.
            auto_output_logging=False,
            display_summary_level=0,
            log_code=False,
            parse_args=False,  # the run's config says it better
            # Describing the machine asks the network for its address and the cloud's metadata.
            log_env_details=online,
        )
        # Lightning 2.6.6 disables an offline experiment as a whole, so that nothing would be
        # written.
        from comet_ml import ExperimentConfig  # an extra, and 1 s to import

        self._comet_config = ExperimentConfig(**self._kwargs)
        # "To get all data logged automatically, import comet_ml before torch": that is switched off
        # on purpose.
        logging.getLogger("comet_ml.experiment").addFilter(
            lambda record: "import comet_ml before" not in str(record.msg)
        )

    def _create_experiment(self) -> None:
        # Lightning calls this in its constructor, long before the training is sure to start
        if self._asked_for:
            try:
                with _fresh_names():
                    super()._create_experiment()
            except (ValueError, OSError, RuntimeError) as error:
                # no key, no network, or Comet's own refusal
                raise LightkitError(
                    f"Comet cannot be reached or refuses: {' '.join(str(error).split())}. Set"
                    " COMET_API_KEY, or say logger.comet.init_args.online=false to write an"
                    " archive that `comet upload` sends later."
                ) from error

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """Comet's experiment, opened on first use."""
        self._asked_for = True
        if self._experiment is None:
            self._create_experiment()
        return self._experiment

    @rank_zero_only
    def add_picture(self, name: str, image: Tensor, step: int) -> None:
        """Keep ``image``, uint8 ``(3, height, width)``, under ``name`` at ``step``."""
        from PIL import Image  # 0.1 s to import

        # Comet scales an array by its own minimum and maximum; a picture stays as it is.
        picture = Image.fromarray(image.permute(1, 2, 0).cpu().numpy())
        self.experiment.log_image(picture, name=name, step=step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Flush; offline, close the archive too, as Comet would only at the process's end."""
        if self._experiment is None:
            return
        super().finalize(status)
        if not self._online:
            self._experiment.end()
            self._experiment = None


@contextmanager
def _fresh_names() -> Iterator[None]:
    """Have Python's generator draw what no other process draws, and leave it as it was.

    comet_ml 3.58 draws the end of an archive's name from it: of two stages of one run, which have
    one seed, the later would replace the archive of the earlier.
    """
    state = random.getstate()
    random.seed()
    try:
        yield
    finally:
        random.setstate(state)
