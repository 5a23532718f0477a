"""Comet, through the extra ``comet``; offline its archive lies in the run's folder."""

from __future__ import annotations

import importlib.util
import logging
import os
from pathlib import Path
from typing import Any, Literal

from lightning_fabric.loggers.logger import rank_zero_experiment
from lightning_utilities.core.rank_zero import rank_zero_only
from pytorch_lightning.loggers import CometLogger
from torch import Tensor

from lightkit import runs
from lightkit.errors import ConfigError, LightkitError


class Comet(CometLogger):
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
        if not online:
            folder.mkdir(parents=True, exist_ok=True)
        # reports to a third party, offline too
        os.environ.setdefault("COMET_ERROR_TRACKING_ENABLE", "false")
        self._asked_for = False
        own = {"project": run.name, "experiment_key": run.stable_key, "name": run.id} if run else {}
        super().__init__(
            workspace=workspace,
            project=project or own.get("project"),
            experiment_key=experiment_key or own.get("experiment_key"),
            mode=mode,
            online=online,
            prefix=prefix,
            name=name or own.get("name"),
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
