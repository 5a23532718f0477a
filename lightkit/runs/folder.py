"""Where runs are: making, opening and finding the folder ``<root>/<name>/<id>``.

A run has those of these files and folders that its commands have written:

==============================  ====================================================================
config.yaml                     the resolved config; `-c` on it gives the same run
manifest.json                   versions, git commit, data fingerprint, seed, hardware, command line
events.jsonl                    start, epoch, checkpoint, warning, gate, stall, end and others: one
                                JSON object a line
metrics.csv                     one row an epoch
resources.csv                   memory, cores and GPUs in use over a fit, by its watchdog
summary.json                    status, best and last metrics, paths, durations, throughput
inputs.json                     what `--if-changed` compares: digests of the config, the data and
                                the code
checkpoints/                    `best.ckpt`, `last.ckpt`, `last-1.ckpt`, each with its digest in a
                                second file
report.html                     the page of `lightkit report`
comparison.html                 the page of `lightkit report RUN OTHER`, in the folder of the first
card.md                         the model card, in the format of the Hugging Face Hub
figures/                        confusion matrices and other figures of the validation and the test
test_predictions.parquet        label, prediction and probabilities of each sample of the last test
validation_predictions.parquet  the same for the validation of the best epoch
thumbnails/                     small pictures of the worst errors and of the least certain samples
                                of both
importance.json                 how much worse the last test is where a column of the table is
                                shuffled
predictions.csv                 the table of `lightkit predict` without IMAGES
predictions.jsonl               the same of a model whose predictions are no rows, such as boxes: a
                                line a sample
predictions.pt                  the same of predictions that JSON has no form for, such as complex
                                numbers
predictions_masks/              the masks that `predictions.csv` names, as PNG files
bad_images.csv                  images and rows that were left out, with the reason
gate.json                       the decision of `lightkit gate`
gate.html                       its page: what was asked, what was found and what decides
promoted.json                   the registered model and its aliases, after `lightkit promote`
retrain.json                    the stages of `lightkit retrain`
trial.json                      of a trial of `lightkit sweep`: the number of its parameters
verdict.json                    of a trial that runs: whether its sweep stops it after an epoch
export/                         exported files, and `export.json` with the verification of each
stalls/                         stacks of all threads and loader processes of a run that hung
logs/                           output of the ranks other than 0 (`rank-N.log`), and of their
                                launcher
mlflow.json                     the run of the MLflow logger
FILE.damaged                    a record that could not be read, before it was written anew
tensorboard/                    event files of the TensorBoard logger
csv/                            the table of the CSV logger
comet/                          what the Comet logger keeps, for `comet upload`
wandb/                          what the Weights & Biases logger keeps, for `wandb sync`
==============================  ====================================================================
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from lightkit.config import near
from lightkit.errors import ConfigError, join_names, pass_on_full_disk
from lightkit.runs.events import read_events
from lightkit.runs.files import atomic_write, find_value, read_json

_LATEST = "latest"
_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4,}")


def check_name(name: str) -> str:
    """Return the name of a job, if a folder can have it.

    Raises:
        ConfigError: If it cannot: the name says which rule it breaks.
    """
    if (
        name == _LATEST
        or not name.isprintable()
        or not re.fullmatch(r"[^\s.\-/\\]([^/\\]*[^\s/\\])?", name)
    ):
        raise ConfigError(
            f"run.name: {name!r} cannot name a folder of runs. Expected a name such as 'flowers':"
            " no slash, backslash or control character, no dot or hyphen at its start, no space at"
            f" its ends, and not {_LATEST!r}."
        )
    return name


def create(root: Path | str, name: str) -> Run:
    """Make the folder of a new run, which no other process has.

    Raises:
        ConfigError: If the name cannot be a folder's, or the folder cannot be made.
    """
    check_name(name)
    root = Path(root).absolute()
    job = root / name
    try:
        job.mkdir(parents=True, exist_ok=True)
        while True:
            run_id = _choose_id(job)
            with suppress(FileExistsError):  # another process began in the same 15 microseconds
                (job / run_id).mkdir()
                return Run(folder=job / run_id, name=name, id=run_id, root=root)
    except OSError as error:
        pass_on_full_disk(error, job)
        raise _unwritable(job, error) from error


def _choose_id(job: Path) -> str:
    """Return the id of a run that begins now: by its time, and after all that the job has.

    Where the clock was set back, or another host's is ahead, it follows the newest of them: the
    newest training is the one that the next start may resume.
    """
    now = datetime.now(UTC)
    run_id = f"{now:%Y%m%d-%H%M%S}-{now.microsecond * 2**16 // 10**6:04x}"
    newest = max(_list_ids(job), default="")
    if run_id > newest:
        return run_id
    second, _, fraction = newest.rpartition("-")
    if fraction.strip("f") == "":
        return f"{newest}0"
    return f"{second}-{int(fraction, 16) + 1:0{len(fraction)}x}"


def _list_ids(job: Path) -> Iterator[str]:
    return (folder.name for folder in _folders(job) if _ID.fullmatch(folder.name))


def point_latest(run: Run) -> None:
    """Point ``<root>/<name>/latest`` to this run, without a moment in which it points nowhere."""
    link = run.folder.parent / _LATEST
    try:
        with atomic_write(link, durable=False) as aside:
            aside.symlink_to(run.id, target_is_directory=True)
    except OSError as error:
        pass_on_full_disk(error, link)
        raise _unwritable(link, error) from error


def open_run(folder: Path | str, *, resumed: bool = False) -> Run:
    """Return the run of a folder that is there.

    Args:
        folder: The run's folder, or a link to it such as ``runs/flowers/latest``.
        resumed: Whether this process continues the run.
    """
    folder = Path(folder).resolve()
    return Run(
        folder=folder,
        name=folder.parent.name,
        id=folder.name,
        root=folder.parent.parent,
        resumed=resumed,
    )


def list_runs(root: Path | str, name: str | None = None) -> list[Run]:
    """List the runs under a root, or those of one job, the newest first.

    What is no run's folder is passed over.
    """
    jobs = [Path(root) / name] if name is not None else _folders(Path(root))
    folders = [folder for job in jobs for folder in _folders(job) if _ID.fullmatch(folder.name)]
    return [
        open_run(folder) for folder in sorted(folders, key=lambda folder: folder.name, reverse=True)
    ]


def find(reference: str, root: Path | str, name: str | None = None) -> Run:
    """Find the run that somebody means.

    Args:
        reference: A run's folder, a job's folder (its latest run), ``latest``, ``NAME``,
            ``NAME/latest``, ``NAME/ID`` or ``ID``.
        root: Folder that holds the runs of all jobs.
        name: The job that ``latest`` and ``ID`` speak of; all jobs if None.

    Raises:
        ConfigError: If there is none, with those that there are.
    """
    root = Path(root)
    path = Path(reference).expanduser()
    jobs = [root / name] if name is not None else [*_folders(root)]
    if reference == _LATEST:
        found = max(filter(None, map(_latest, jobs)), key=lambda run: run.id, default=None)
    else:
        job = path.parent if path.name == _LATEST else path
        folders = filter(_is_run, (path, root / path, *(each / path for each in jobs)))
        found = next(
            chain(map(open_run, folders), filter(None, map(_latest, (job, root / job)))), None
        )
    if found is None:
        raise _explain_missing(reference, root, name)
    return found


def _explain_missing(reference: str, root: Path, name: str | None) -> ConfigError:
    """Explain that there is no such run, with those that there are."""
    there = [f"{run.name}/{run.id}" for run in list_runs(root)]
    if not there:
        return ConfigError(
            f"There is no run {reference!r}: there are no runs in {root}."
            " `lightkit fit` makes the first."
        )
    hint = near(reference, [*there, *(run.split("/")[0] for run in there)]) or "."
    asked = f" of {name!r}" if name is not None and reference == _LATEST else ""
    return ConfigError(
        f"There is no run {reference!r}{asked} in {root}{hint} The newest runs:"
        f" {join_names(there)}."
    )


def newest_interrupted(root: Path | str, name: str) -> Run | None:
    """Return the newest fit of a job if it did not get to its end, else None.

    Only the newest counts: a fit that was interrupted before another one ended well is history. A
    process that was killed has left no summary, or one that says "running"; so the caller holds the
    job's lock.
    """
    newest = next((run for run in list_runs(root, name) if run.is_fit), None)
    return None if newest is None or _read_end(newest) in ("done", "pruned") else newest


def _read_end(run: Run) -> str | None:
    """Return the status with which the training of a run has ended.

    By its events where its summary cannot be read.
    """
    if (summary := read_json(run.summary_path)) is not None or not run.summary_path.exists():
        found: str | None = find_value(summary, "status")
        return found
    status = None
    for event in read_events(run.events_path):
        if event["event"] in ("start", "resume") and event.get("stage") == "fit":
            status = None
        elif event["event"] == "end":  # the first: a test of the run ends later
            status = status or event.get("status")
    return status


def _folders(parent: Path) -> Iterator[Path]:
    try:
        children = sorted(parent.iterdir())
    except OSError:
        return
    for child in children:
        if not child.is_symlink() and child.is_dir() and not child.name.startswith("."):
            yield child


def _is_run(folder: Path) -> bool:
    """Return whether a path is a run's folder.

    The folder of the data may have the name of a job.
    """
    if not folder.is_dir():
        return False
    files = ("manifest.json", "config.yaml", "events.jsonl", "checkpoints")
    return bool(_ID.fullmatch(folder.resolve().name)) or any(
        (folder / file).exists() for file in files
    )


def _latest(job: Path) -> Run | None:
    if (job / _LATEST).is_dir():
        return open_run(job / _LATEST)
    # killed before it was set, or copied without links
    return next(iter(list_runs(job.parent, job.name)), None)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"run.root: cannot write {path}: {error.strerror or error}. Set run.root to a folder that"
        " can be written, such as --run.root /tmp/runs."
    )


@dataclass(frozen=True)
class Run:
    """The folder of one run, and the names of the files in it.

    Args:
        folder: Absolute path, ``<root>/<name>/<id>``.
        name: Name of the job.
        id: UTC time of its creation, the fraction of the second in hex, ``20261120-113859-3fa1``:
            ids sort in the order of creation, also where the clock was set back.
        root: Folder that holds the runs of all jobs.
        resumed: Whether this process continues what an earlier one began in the same folder.
        stage: Stage that this process runs.
    """

    folder: Path
    name: str
    id: str
    root: Path
    resumed: bool = False
    stage: str = "fit"

    @property
    def has_valid_id(self) -> bool:
        """Return whether lists, retention and the next start see it: a copy may have any name."""
        return bool(_ID.fullmatch(self.id))

    @property
    def stable_key(self) -> str:
        """40 letters and digits that trackers can take as a key, the same in each resume."""
        return hashlib.sha256(f"{self.name}/{self.id}".encode()).hexdigest()[:40]

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints and of the digest beside each."""
        return self.folder / "checkpoints"

    @property
    def config_path(self) -> Path:
        """The resolved config, replayable by itself."""
        return self.folder / "config.yaml"

    @property
    def manifest_path(self) -> Path:
        """Path of the record of the run's origin: code, packages, data, seed, hardware."""
        return self.folder / "manifest.json"

    @property
    def events_path(self) -> Path:
        """One event a line."""
        return self.folder / "events.jsonl"

    @property
    def metrics_path(self) -> Path:
        """One row an epoch."""
        return self.folder / "metrics.csv"

    @property
    def summary_path(self) -> Path:
        """How the run ended."""
        return self.folder / "summary.json"

    @property
    def is_fit(self) -> bool:
        """Return whether it is a fit that keeps its results.

        Without a manifest its checkpoints tell.
        """
        manifest = read_json(self.manifest_path)
        if manifest is None:
            return any(self.checkpoints.glob("*.ckpt"))
        return manifest.get("subcommand") == "fit" and not manifest.get("fast_dev_run")


_active: list[Run] = []


def current() -> Run | None:
    """The run that this process writes to, or None outside the command line."""
    return _active[-1] if _active else None


@contextmanager
def activate(run: Run) -> Iterator[Run]:
    """Make ``run`` the current one for as long as the block lasts."""
    _active.append(run)
    try:
        yield run
    finally:
        _active.pop()
