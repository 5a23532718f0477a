"""What a trial of `lightkit sweep` costs: beside a fit of its own, beside Hydra's sweeper, and beside one process.

The small net and its data are lightkit's `Regressor` and `Temperatures`, on the CPU with one thread. All contestants
run in turn, so that what else the machine does falls on all alike.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benches.command_line import create_parser, parse_options, run_bench
from benches.environment import build_environment
from benches.photo_data import copy_split, find_photos, find_weights
from benches.rounds import BenchError, compare, mark_unmeasured, run_rounds

SWEEP, FIT, HYDRA, ONE_PROCESS = "lightkit sweep", "lightkit fit", "Hydra's sweeper", "study.optimize"
TRIAL_AT_MOST, COLD_AT_MOST, WARM_AT_MOST = 0.3, 0.15, 0.5
HYDRA_AT_LEAST, ONE_PROCESS_AT_LEAST = 3.0, 0.8
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 2e-1)
NUM_PHOTO_TRIALS = 20
TIMEOUT_S = 3600.0

SMALL = """\
seed_everything: 7
model: Regressor
data: Temperatures
trainer: {max_epochs: 2, accelerator: cpu, logger: false, enable_progress_bar: false, enable_model_summary: false}
run: {report: false}
"""
PHOTOS = """\
seed_everything: 7
model:
  class_path: ImageClassifier
  init_args: {{backbone: mobilenet_v2, freeze: backbone, weights: {weights}, learning_rate: 0.001}}
data:
  class_path: ImageFolder
  init_args: {{root: {photos}, image_size: {size}, batch_size: 16}}
trainer: {{max_epochs: 5, accelerator: cpu, logger: false, enable_progress_bar: false}}
run: {{report: false}}
"""
TRAIN = """\
import warnings

warnings.filterwarnings("ignore")
import pytorch_lightning as pl

from lightkit.data import Temperatures
from lightkit.models import Regressor


def train(rate):
    pl.seed_everything(7, verbose=False)
    checkpoint = pl.callbacks.ModelCheckpoint(monitor="val/loss", save_last=True)
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[checkpoint],
    )
    trainer.fit(Regressor(learning_rate=rate), Temperatures())
    return float(checkpoint.best_model_score)
"""
OPTIMIZE = """\
import sys

import optuna

from train import train

rates = [float(rate) for rate in sys.argv[1:]]
study = optuna.create_study(sampler=optuna.samplers.GridSampler({"rate": rates}))
study.optimize(lambda trial: train(trial.suggest_categorical("rate", rates)))
"""
HYDRA_SCRIPT = """\
import subprocess
import sys

import hydra


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config):
    program = "from pytorch_lightning.cli import LightningCLI; LightningCLI(save_config_kwargs={'overwrite': True})"
    words = ["fit", "--config", sys.argv[0].replace("sweep.py", "plain.yaml"), f"--model.learning_rate={config.rate}"]
    subprocess.run([sys.executable, "-c", program, *words], check=True)


main()
"""
PLAIN = """\
seed_everything: 7
model: lightkit.models.Regressor
data: lightkit.data.Temperatures
trainer: {max_epochs: 2, accelerator: cpu, logger: false, enable_progress_bar: false, enable_model_summary: false}
"""


def run(words: Sequence[str]) -> int:
    """Measure, print a table or JSON, and return the exit code.

    Args:
        words: See `--help`.
    """
    parser = create_parser("sweep", __doc__, repeat=3)
    parser.add_argument("--photos", type=Path, metavar="FOLDER", help="photos, one folder a class")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="MobileNetV2's state dict")
    parser.add_argument("--without-photos", action="store_true", help="leave out the trials on photos")
    parser.add_argument("--max-images", type=int, metavar="N", help="take N photos at most")
    options = parse_options(parser, words)
    num_trials = 3 if options.quick else len(RATES)
    return run_bench("sweep", options, lambda: measure(parser, options, num_trials), threads=1)


def measure(parser: ArgumentParser, options: Any, num_trials: int) -> dict[str, Any]:
    """Run all contestants in turn.

    Args:
        parser: For errors in the options.
        options: Those of the command line.
        num_trials: Configurations of the small net.

    Returns:
        Comparisons, and all rounds.
    """
    rates = RATES[:num_trials]
    repeat = 1 if options.quick else options.repeat
    with tempfile.TemporaryDirectory(prefix="bench-sweep-") as name:
        folder = Path(name)
        for file, text in {
            "small.yaml": SMALL,
            "plain.yaml": PLAIN,
            "train.py": TRAIN,
            "optimize.py": OPTIMIZE,
            "sweep.py": HYDRA_SCRIPT,
        }.items():
            (folder / file).write_text(text, encoding="utf-8")
        comparisons, rounds = _measure_small(folder, rates, repeat)
        if not (options.without_photos or options.quick):
            found = _measure_photos(parser, options, folder, repeat)
            comparisons += found[0]
            rounds |= found[1]
    notes = [
        "The cost of a trial beyond its training is the difference of two sweeps by the difference of their trials, "
        "less the seconds that the trials' own summaries count as training.",
        "Trials a minute include the start of each contestant.",
    ]
    return {"comparisons": comparisons, "rounds": rounds, "notes": notes}


def _measure_small(folder: Path, rates: Sequence[float], repeat: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    has_hydra = find_spec("hydra") is not None
    contestants = {
        "trial": partial(_time_trial, folder, rates),
        FIT: partial(_time_fit, folder),
        SWEEP: partial(_rate_of_sweep, folder, rates),
        ONE_PROCESS: lambda _: _rate_of_one_process(folder, rates),
    }
    if has_hydra:
        contestants[HYDRA] = lambda _: _rate_of_hydra(folder, rates)
    rounds = run_rounds(contestants, repeat=repeat, title="sweep")
    title = f"trials a minute, {len(rates)} configurations, 2 epochs"
    lines = [
        compare(
            "a trial beyond its training",
            {SWEEP: rounds["trial"], FIT: rounds[FIT]},
            of=SWEEP,
            to=FIT,
            unit="s",
            at_most=TRIAL_AT_MOST,
        ),
        compare(title, rounds, of=SWEEP, to=ONE_PROCESS, unit="/min", at_least=ONE_PROCESS_AT_LEAST),
    ]
    if has_hydra:
        lines.append(compare(title, rounds, of=SWEEP, to=HYDRA, unit="/min", at_least=HYDRA_AT_LEAST))
    else:
        reason = "hydra-core is not installed"
        lines.append(mark_unmeasured(title, of=SWEEP, to=HYDRA, reason=reason, at_least=HYDRA_AT_LEAST))
    return lines, dict(rounds)


def _run(folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> float:
    """Run a program, and return its seconds.

    Raises:
        BenchError: If it fails.
    """
    began_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**build_environment(), **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    taken_s = time.perf_counter() - began_s
    if done.returncode:
        raise BenchError(f"{' '.join(words)} ended with {done.returncode}:\n{(done.stderr or done.stdout)[-2000:]}")
    return taken_s


def _time_fit(folder: Path, seed: int) -> float:
    return _run(folder, "-m", "lightkit", "fit", "-c", "small.yaml", f"--run.name=fit{seed}")


def _time_sweep(folder: Path, rates: Sequence[float], name: str) -> float:
    values = ",".join(map(str, rates))
    words = ("sweep", "-c", "small.yaml", "--space", f"model.learning_rate={values}", f"--run.name={name}")
    return _run(folder, "-m", "lightkit", *words, "--sweep.metric=val/loss", "--quiet")


def _time_trial(folder: Path, rates: Sequence[float], seed: int) -> float:
    """Return the seconds that a trial costs beyond its training, by the difference of a long and a short sweep."""
    short_s = _time_sweep(folder, rates[:1], f"short{seed}")
    long_s = _time_sweep(folder, rates, f"long{seed}")
    summaries = [json.loads(path.read_text()) for path in folder.glob(f"runs/long{seed}/2*/summary.json")]
    training_s = statistics.median(each["durations"]["fit"] for each in summaries)
    return (long_s - short_s) / (len(rates) - 1) - training_s


def _rate_of_sweep(folder: Path, rates: Sequence[float], seed: int) -> float:
    """Return trials a minute; the config itself is one of them."""
    seconds = _time_sweep(folder, rates[:-1], f"rate{seed}")
    return 60 * len(rates) / seconds


def _rate_of_one_process(folder: Path, rates: Sequence[float]) -> float:
    return 60 * len(rates) / _run(folder, "optimize.py", *map(str, rates))


def _rate_of_hydra(folder: Path, rates: Sequence[float]) -> float:
    return 60 * len(rates) / _run(folder, "sweep.py", "--multirun", f"+rate={','.join(map(str, rates))}")


def _measure_photos(
    parser: ArgumentParser, options: Any, folder: Path, repeat: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measure trials of a frozen MobileNetV2 beside as many fits, with and without features that are kept."""
    photos = find_photos(parser, options.photos)
    weights = find_weights(parser, options.weights)
    split = copy_split(photos, folder / "photos", max_images=options.max_images)
    text = PHOTOS.format(photos=split.root, weights=weights, size=160)
    (folder / "photos.yaml").write_text(text, encoding="utf-8")
    rates = [10 ** (-4 + 2 * number / NUM_PHOTO_TRIALS) for number in range(NUM_PHOTO_TRIALS - 1)]
    contestants = {
        SWEEP: partial(_time_photo_sweep, folder, rates),
        "fits, each with an empty cache": partial(_time_photo_fits, folder, rates, is_cold=True),
        "fits with a warm cache": partial(_time_photo_fits, folder, rates, is_cold=False),
    }
    rounds = run_rounds(contestants, repeat=repeat, title="sweep on photos")
    title = f"{NUM_PHOTO_TRIALS} trials of frozen MobileNetV2 on {split.num_train + split.num_val} photos"
    names = list(contestants)
    lines = [
        compare(title, rounds, of=SWEEP, to=names[1], unit="s", at_most=COLD_AT_MOST),
        compare(title, rounds, of=SWEEP, to=names[2], unit="s", at_most=WARM_AT_MOST),
    ]
    return lines, {f"photos: {name}": values for name, values in rounds.items()}


def _time_photo_sweep(folder: Path, rates: Sequence[float], seed: int) -> float:
    values = ",".join(map(str, rates))
    words = ("sweep", "-c", "photos.yaml", "--space", f"model.learning_rate={values}", "--sweep.metric=val/loss")
    cache = {"XDG_CACHE_HOME": str(folder / f"cache-sweep{seed}")}
    return _run(folder, "-m", "lightkit", *words, f"--run.name=photos{seed}", "--quiet", environment=cache)


def _time_photo_fits(folder: Path, rates: Sequence[float], seed: int, *, is_cold: bool) -> float:
    """Train each by a fit of its own; for a warm cache one fit that does not count has filled it."""
    words = ("fit", "-c", "photos.yaml", "--quiet")
    warm = {"XDG_CACHE_HOME": str(folder / f"cache-warm{seed}")}
    if not is_cold:
        _run(folder, "-m", "lightkit", *words, f"--run.name=warm{seed}", environment=warm)
    total_s = 0.0
    for number, rate in enumerate([1e-3, *rates]):
        cache = {"XDG_CACHE_HOME": str(folder / f"cache-cold{seed}-{number}")} if is_cold else warm
        name = f"--run.name={'cold' if is_cold else 'again'}{seed}-{number}"
        total_s += _run(folder, "-m", "lightkit", *words, name, f"--model.learning_rate={rate}", environment=cache)
    return total_s
