"""Weights & Biases, through the extra ``wandb``; offline its files lie in the run's folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_only
from pytorch_lightning.loggers import WandbLogger
from torch import Tensor

from lightkit import runs
from lightkit.config import shown_path
from lightkit.errors import ConfigError, LightkitError
from lightkit.loggers.evaluation import EvaluationMetrics, SendsEvaluation


class WandB(SendsEvaluation, WandbLogger):
    """Record parameters, metrics and pictures with W&B. Needs ``lightkit-train[wandb]``.

    A resumed run continues its W&B run. The API key comes from ``WANDB_API_KEY`` or from
    ``wandb login``, so that no config needs to hold it.

    Args:
        project: W&B project; by default the run's name.
        name: Name of the W&B run; by default the run's id.
        id: Id of the W&B run; by default derived from the run's id.
        offline: Write files for ``wandb sync``, with neither a network nor an API key.
        save_dir: Folder of the files; by default the run's folder, or the working directory outside
            the lightkit command.
        prefix: Put before each metric's name, with a dash.
    """

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        id: str | None = None,  # noqa: A002 (as wandb calls it)
        offline: bool = False,
        save_dir: str | None = None,
        prefix: str = "",
    ) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise ConfigError(
                "The logger WandB needs wandb, which is not installed: pip install"
                " 'lightkit-train[wandb]'"
            )
        self._evaluation = EvaluationMetrics("Weights & Biases")
        run = runs.current()
        folder = Path(save_dir or (run.folder if run else "."))
        if run is not None and id is None:
            id = run.stable_key  # noqa: A001
        super().__init__(
            project=project or (run.name if run else "lightkit"),
            name=name or (run.id if run else None),
            id=id,
            offline=offline,
            save_dir=str(folder),
            prefix=prefix,
            # W&B takes over standard output otherwise, and ends each run with a page of its own.
            settings={"console": "off", "silent": True, "disable_code": True, "disable_git": True},
        )

    @property
    def experiment(self) -> Any:
        """W&B's run, opened on first use.

        Raises:
            LightkitError: If there is no API key, no network, or W&B refuses.
        """
        from wandb.errors import Error  # an extra, and 1 s to import

        try:
            return super().experiment
        except Error as error:
            raise LightkitError(
                f"Weights & Biases cannot be reached or refuses: {' '.join(str(error).split())} Set"
                " WANDB_API_KEY, or say logger.wandb.init_args.offline=true to write files that"
                " `wandb sync` sends later."
            ) from error

    @property
    def view_command(self) -> list[str] | None:
        """Command that sends the files of an offline run; None for one that is online."""
        return (
            ["wandb", "sync", shown_path(Path(str(self.save_dir)) / "wandb" / "latest-run")]
            if self._offline
            else None
        )

    @rank_zero_only
    def add_picture(self, name: str, image: Tensor, step: int) -> None:
        """Keep ``image``, uint8 ``(3, height, width)``, under ``name`` at ``step``."""
        self.log_image(name, [image.permute(1, 2, 0).cpu().numpy()], step)
