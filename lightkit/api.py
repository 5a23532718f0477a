"""The commands as functions, for notebooks and scripts.

`lightkit.fit`, `load_run`, `list_runs` and `load_config`.

They take what the command line takes and do what it does. Where a command prints an error and ends
with an exit code, they raise `lightkit.errors.LightkitError` with the same text. No function ends
the process, and what a command changes in its process (signal handlers, hooks for uncaught
exceptions, filters of warnings) is put back.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lightkit import errors, runs
from lightkit.cli.command_line import Invocation
from lightkit.cli.command_table import parse
from lightkit.cli.notifications import CommandNotifier
from lightkit.cli.stage_runner import open_run_config, open_stage_config, run_stage
from lightkit.config import read_file
from lightkit.config.display import redact_node
from lightkit.config.run_root import find_run_root
from lightkit.config.tree import to_plain
from lightkit.runs.index import index_runs
from lightkit.runs.signals import SignalWatch

if TYPE_CHECKING:
    from pytorch_lightning import LightningModule


PathLike: TypeAlias = "str | os.PathLike[str]"
Files: TypeAlias = "PathLike | Sequence[PathLike]"
_ERRORS = {
    error.exit_code: error
    for error in (
        errors.LightkitError,
        errors.ConfigError,
        errors.DataError,
        errors.Stalled,
        errors.RunLocked,
    )
}
"""For the exit code of a launch of several processes."""


@dataclass(frozen=True)
class TrainingRun:
    """A run folder, as `fit` and `load_run` return it. Each attribute reads its file anew.

    Args:
        folder: Absolute path, `runs/NAME/ID`.

    Example:
        ```python
        run = lightkit.load_run("latest")
        print(run.summary["status"], run.metrics[-1]["val/loss"])
        ```
    """

    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        """`summary.json`: status, best and last metrics, paths, durations.

        Empty before it is written.
        """
        return runs.read_json(self.folder / "summary.json") or {}

    @property
    def metrics(self) -> list[dict[str, float]]:
        """`metrics.csv`: one record for each epoch, oldest first.

        Such as `{"epoch": 0, "val/loss": 1.2}`.
        """
        return runs.MetricsTable(self.folder / "metrics.csv").rows

    @property
    def config(self) -> dict[str, Any]:
        """`config.yaml`: the resolved config.

        With references such as `${oc.env:TOKEN}` in the place of secrets.
        """
        values: dict[str, Any] = to_plain(read_file(self.folder / "config.yaml"))
        return values

    def model(self, checkpoint: PathLike = "best") -> LightningModule:
        """Build the model with its weights, on the CPU, in eval mode. The data is not read.

        Args:
            checkpoint: `best`, `last` or a file, as with `--ckpt_path`.

        Raises:
            LightkitError: If there is no such checkpoint, or it cannot be read or does not fit.
        """
        with _command():
            stage_config = open_run_config(
                Invocation(
                    "export", options={"run": str(self.folder), "ckpt_path": os.fspath(checkpoint)}
                ),
                is_quiet=True,
            )
            # Late: they load torch and Lightning.
            from lightkit.cli.model_builder import build_model, translate_model_errors
            from lightkit.cli.model_loading import load_model

            # a run without checkpoints is an error before
            assert stage_config.ckpt_path is not None
            with translate_model_errors(stage_config.resolved) as stack:
                module, _ = build_model(stage_config, stack)
                load_model(module, None, Path(stage_config.ckpt_path))
            module.trainer = None
            return module

    def predict(
        self, images: Files, *, top_k: int | Literal["all"] | None = None
    ) -> list[dict[str, Any]]:
        """Predict image files with the best checkpoint, like `lightkit predict --run RUN IMAGES`.

        Args:
            images: Files, folders, globs, or tables with a column of paths.
            top_k: Number of classes in a record; 3 if None. `all`: the likeliest, and
                `probability_NAME` of each class.

        Returns:
            One record for each image, such as `{"path": "a.jpg", "label": "roses", "probability":
            0.93, "label_2": ..., "error": None}`. An image that cannot be read has the reason in
            `error`.

        Raises:
            ConfigError: If the model or its data cannot predict images.
            DataError: If an image or folder is missing, or no image can be read.
        """
        with TemporaryDirectory(prefix="lightkit-") as folder:
            table = Path(folder, "predictions.jsonl")
            words = [f"--run={self.folder}", f"--output={table}", "--quiet"]
            words += [] if top_k is None else [f"--top-k={top_k}"]
            _run("predict", [*words, "--", *_list_files(images)])
            return [json.loads(line) for line in table.read_text(encoding="utf-8").splitlines()]

    def report(self, output: PathLike | None = None) -> Path:
        """Write the report of the run, as `lightkit report` does, and return its path.

        Args:
            output: An HTML file, and nothing is written in the run folder; `report.html` in it if
                None.

        Raises:
            OSError: If it cannot be written.
        """
        from lightkit.reports.pages import write_run_report  # here: it loads numpy

        return write_run_report(
            runs.open_run(self.folder), Path(output).absolute() if output else None
        ).absolute()


def fit(
    config: Files, overrides: Mapping[str, Any] | None = None, *, quiet: bool = False
) -> TrainingRun:
    """Train a model, or resume the run that was interrupted, as `lightkit fit` does.

    Args:
        config: Config file, or several; later ones override earlier ones. `lightkit:NAME` is a
            packaged config.
        overrides: Values by dotted key, which override the files. A string is read as on the
            command line.
        quiet: Print warnings only.

    Returns:
        The run, which has ended well.

    Raises:
        LightkitError: Where the command would print an error: a `ConfigError` for the config, a
            `DataError` for the data, `RunLocked` if another process runs the job, and so on.
        KeyboardInterrupt: After Ctrl-C, once a checkpoint is written; the same call resumes.

    Example:
        ```python
        run = lightkit.fit("lightkit:flowers", {"trainer.max_epochs": 3, "data.batch_size": 64})
        run.summary["best"]
        ```
    """
    return _run("fit", [*_config_args(config, overrides), *(["--quiet"] if quiet else [])])


def load_run(reference: PathLike = "latest", *, root: PathLike | None = None) -> TrainingRun:
    """Find a run.

    Args:
        reference: `latest`, `NAME`, `NAME/latest`, `NAME/ID`, `ID`, or the folder of a run or a
            job.
        root: Folder of all runs; None for that of the variable `LIGHTKIT_RUN__ROOT`, else `runs`.

    Raises:
        ConfigError: If there is no such run.

    Example:
        ```python
        lightkit.load_run("flowers").predict("new_photos/")
        ```
    """
    return TrainingRun(runs.find(os.fspath(reference), _find_root(root)).folder)


def list_runs(
    name: str | None = None, *, root: PathLike | None = None, metric: str | None = None
) -> list[dict[str, Any]]:
    """List the runs, the newest first, as `lightkit runs --json` does.

    Args:
        name: Runs of this job only.
        root: Folder of all runs; None for that of the variable `LIGHTKIT_RUN__ROOT`, else `runs`.
        metric: Metric in `value`, such as `test/accuracy`; the one that chose the best checkpoint
            if None.

    Returns:
        One record for each run: `name`, `id`, `folder`, `status`, `metric`, `value`, `size_bytes`,
        `created`, ...

    Example:
        ```python
        runs = lightkit.list_runs("flowers", metric="val/accuracy")
        best = max(runs, key=lambda record: record["value"])
        pandas.DataFrame(lightkit.list_runs())  # where pandas is installed
        ```
    """
    return [
        entry.fields(now=time.time()) for entry in index_runs(_find_root(root), name, metric=metric)
    ]


def load_config(config: Files, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Load and check a config without training.

    All layers are merged and interpolated, hardware keys resolved.

    Torch is loaded only where a class of your own must be imported to check its arguments.

    Args:
        config: As for `fit`.
        overrides: As for `fit`.

    Returns:
        The config, with references in the place of secrets, as in the `config.yaml` of a run.
        Arguments that no layer sets are left to their defaults and are not in it.

    Raises:
        ConfigError: If anything in it is wrong: every error, with its place.
        DataError: If only the data is missing.

    Example:
        ```python
        lightkit.load_config(["lightkit:flowers", "lightkit:logger/csv"])["trainer"]
        ```
    """
    with _command():
        resolved = open_stage_config(parse(["fit", *_config_args(config, overrides)])).resolved
        values: dict[str, Any] = redact_node(resolved, resolved.tree, ())
        return values


def _find_root(root: PathLike | None) -> Path:
    return find_run_root() if root is None else Path(root)


def _list_files(files: Files) -> list[str]:
    return [
        os.fspath(file) for file in ([files] if isinstance(files, (str, os.PathLike)) else files)
    ]


def _config_args(config: Files, overrides: Mapping[str, Any] | None) -> list[str]:
    """Write configs and overrides as words of the command line.

    Raises:
        ConfigError: If they are of another type.
    """
    if isinstance(config, Mapping):
        raise errors.ConfigError(
            "config: expected a file, `lightkit:NAME`, or a list of them, got a dictionary; values"
            " go by dotted key into overrides, such as {'trainer.max_epochs': 3}"
        )
    if not isinstance(overrides, Mapping | None):
        raise errors.ConfigError(
            "overrides: expected a dictionary by dotted key, such as {'trainer.max_epochs': 3}, got"
            f" a {type(overrides).__name__}"
        )
    words = [word for file in _list_files(config) for word in ("-c", file)]
    for key, value in (overrides or {}).items():
        is_text = isinstance(value, (str, os.PathLike))
        try:
            text = os.fspath(value) if is_text else json.dumps(value, default=_to_plain)
        except (TypeError, ValueError) as error:
            raise errors.ConfigError(
                f"{key}: expected text, a path, a number, True, False, None, or a list or"
                f" dictionary of them: {error}"
            ) from error
        words.append(f"{key}={text}")
    return words


def _to_plain(value: Any) -> Any:
    """Return a path as text, and numbers of numpy or torch as Python's, an array as a list."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(f"got a {type(value).__name__}")


def _run(stage: str, words: list[str]) -> TrainingRun:
    """Run a stage and return its run."""
    invocation = parse([stage, *words])
    notifier = CommandNotifier(invocation)
    with _command() as watch:
        code = run_stage(invocation, watch, notifier)
        if watch.received is not None:
            raise errors.Interrupted(watch.received)
    # other processes, or the ranks of a launcher, have printed why
    if code or notifier.run is None:
        text = (
            notifier.message.strip().removeprefix("error: ")
            or f"{stage} ended with exit code {code}; see above"
        )
        raise _ERRORS.get(code, errors.LightkitError)(text)
    return TrainingRun(notifier.run.folder)


@contextmanager
def _command() -> Iterator[SignalWatch]:
    """Put back what a command changes in its process.

    A signal takes its usual effect once the run is recorded.
    """
    path = list(sys.path)
    hooks = (sys.excepthook, threading.excepthook)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 (a class_path of the user's own module is found here)
    try:
        with warnings.catch_warnings(), SignalWatch(owns_process=False) as watch:
            yield watch
    except errors.Interrupted as interruption:
        signal.raise_signal(interruption.signum)
        raise
    finally:
        sys.path[:] = path
        sys.excepthook, threading.excepthook = hooks
