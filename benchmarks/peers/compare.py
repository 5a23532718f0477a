"""Compare lightkit with other tools for the same trainings.

`python benchmarks/peers/compare.py ENVIRONMENTS`.

Whole processes, in turns. It prints a table a scenario, and writes each command with its output
into the folder of `--out`. What does not begin within `--minutes` is listed as not run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from benches.photo_data import copy_split  # noqa: E402
from measure import ToolFailed, run  # noqa: E402
from tools import Job, Setting, list_frozen, list_inference, list_trainings  # noqa: E402

SCENARIOS = ("shipped", "frozen", "inference", "equal")
# of torchvision's second and first weights
_TORCH_NAMES = ("mobilenet_v2-7ebf99e0.pth", "mobilenet_v2-b0353104.pth")


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    beside = HERE.parents[2] / "shared" / "data"
    parser.add_argument("environments", type=Path, help="folder of environments.py")
    parser.add_argument(
        "--photos", type=Path, default=beside / "flower_photos", help="one folder a class"
    )
    parser.add_argument(
        "--weights",
        type=Path,
        default=beside / "weights" / "mobilenet_v2_in1k_torchvision.pth",
        help="MobileNetV2's",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("peers"), help="logs and results (default: peers)"
    )
    parser.add_argument(
        "--minutes", type=float, default=25.0, help="begin nothing after these (default: 25)"
    )
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each tool (default: 1)")
    parser.add_argument(
        "--epochs", type=int, default=4, help="of a training from scratch (default: 4)"
    )
    parser.add_argument(
        "--equal-epochs", type=int, default=2, help="of one that is made equal (default: 2)"
    )
    parser.add_argument(
        "--frozen-epochs", type=int, default=10, help="of a frozen backbone (default: 10)"
    )
    parser.add_argument("--max-images", type=int, metavar="N", help="take N photos at most")
    parser.add_argument("--size", type=int, default=160, help="side of the crops (default: 160)")
    parser.add_argument("--only", nargs="*", default=SCENARIOS, choices=SCENARIOS, help="scenarios")
    parser.add_argument(
        "--tools", nargs="*", help="beginnings of the names of tools (default: all)"
    )
    options = parser.parse_args()
    Comparison(options).run_all()
    return 0


class Comparison:
    """The scenarios, one after another.

    Args:
        options: The command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._end_s = time.monotonic() + 60 * options.minutes
        self._out: Path = options.out.resolve()
        shutil.rmtree(self._out, ignore_errors=True)
        self._out.mkdir(parents=True)
        unsplit = self._out / "photos"
        unsplit.mkdir()
        for folder in sorted(path for path in options.photos.resolve().iterdir() if path.is_dir()):
            (unsplit / folder.name).symlink_to(folder)
        split = copy_split(options.photos, self._out / "split", max_images=options.max_images)
        self._num_train = split.num_train
        environments = options.environments.resolve()
        _place_weights(environments, options.weights)
        self._setting = Setting(
            photos=split.root,
            unsplit=unsplit,
            environments=environments,
            weights=options.weights.resolve(),
            size=options.size,
            num_classes=split.num_classes,
        )
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def run_all(self) -> None:
        """Run the scenarios, and print a table of each."""
        print(_describe_machine())
        for scenario in self._options.only:
            if scenario == "inference":
                self._run_inference()
            else:
                self._run_trainings(scenario)
            print(f"\n{_TITLES[scenario]}\n\n{format_table(self._rows[scenario])}", flush=True)
        results = {
            "machine": _describe_machine(),
            "options": vars(self._options),
            "rows": self._rows,
        }
        text = json.dumps(results, indent=2, default=str)
        (self._out / "results.json").write_text(text, encoding="utf-8")

    def _run_trainings(self, scenario: str) -> None:
        epochs = {
            "shipped": self._options.epochs,
            "equal": self._options.equal_epochs,
            "frozen": self._options.frozen_epochs,
        }
        rounds: list[list[dict[str, Any]]] = []
        for seed in range(self._options.seeds):
            setting = replace(self._setting, epochs=epochs[scenario], seed=seed)
            jobs = (
                list_frozen(setting)
                if scenario == "frozen"
                else list_trainings(setting, equal=scenario == "equal")
            )
            rounds.append(
                [self._run_job(job, self._out / scenario / str(seed)) for job in self._select(jobs)]
            )
        self._rows[scenario] = [_summarize(each) for each in zip(*rounds, strict=True)]

    def _select(self, jobs: Sequence[Job]) -> list[Job]:
        wanted = self._options.tools
        return [
            job for job in jobs if not wanted or any(job.tool.startswith(name) for name in wanted)
        ]

    def _run_inference(self) -> None:
        trained = next(iter(sorted(self._out.glob("frozen/0/lightkit/runs/*/2*"))), None) or next(
            iter(sorted(self._out.glob("shipped/0/lightkit/runs/*/2*"))), None
        )
        if trained is None:
            self._rows["inference"] = [
                {"tool": "lightkit", "note": "not run: no training before it"}
            ]
            return
        export = [
            sys.executable,
            "-m",
            "lightkit",
            "export",
            "--run",
            str(trained),
            "--format",
            "onnx",
        ]
        try:
            run(export, folder=self._out, log=self._out / "export.log")
        except ToolFailed as error:
            self._rows["inference"] = [{"tool": "lightkit", "note": f"failed: {error}"}]
            return
        model = next((trained / "export").glob("*.onnx"))
        weights = next(
            iter(sorted(self._out.glob("frozen/0/*/runs/classify/**/weights/best.pt"))), None
        )
        jobs = list_inference(self._setting, run=trained, model=model, yolo_weights=weights)
        self._rows["inference"] = [
            self._run_job(job, self._out / "inference") for job in self._select(jobs)
        ]

    def _run_job(self, job: Job, folder: Path) -> dict[str, Any]:
        if time.monotonic() > self._end_s:
            return {"tool": job.tool, "note": "not run: no time left"}
        own = folder / job.tool.replace(" ", "-")
        own.mkdir(parents=True)
        for name, text in job.files.items():
            (own / name).write_text(text, encoding="utf-8")
        if job.tool == "lightkit":
            init = [
                sys.executable,
                "-m",
                "lightkit",
                "init",
                "--data",
                str(self._setting.photos),
                "--output",
                "photos.yaml",
            ]
            subprocess.run(init, cwd=own, check=True, capture_output=True)
        try:
            measured = run(
                job.command, folder=own, log=own / "log.txt", epoch=job.epoch, environ=job.environ
            )
        except (ToolFailed, OSError) as error:
            return {"tool": job.tool, "note": f"failed: {error}"}
        row = {
            "tool": job.tool,
            "wall_s": measured.wall_s,
            "cpu_s": measured.cpu_s,
            "peak_mb": measured.peak_mb,
            "images_per_s": measured.compute_images_per_s(self._num_train),
            "accuracy": job.find_accuracy(own, measured),
            "command": " ".join(map(str, job.command)),
        }
        print(f"{folder.name} {job.tool}: {measured.wall_s:.1f} s", file=sys.stderr, flush=True)
        return row


_TITLES = {
    "shipped": "ResNet-18 from random weights, each tool with its own defaults",
    "frozen": "A new head on a frozen MobileNetV2, each tool with its own defaults",
    "inference": "All photos predicted by a model that is trained",
    "equal": "ResNet-18 from random weights, made equal",
}
_NUMBERS = ("wall_s", "cpu_s", "peak_mb", "images_per_s", "accuracy")


def _summarize(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of several trainings of one tool; of the accuracy, mean and range."""
    row = dict(rounds[0])
    for name in _NUMBERS:
        values = [each[name] for each in rounds if each.get(name) is not None]
        if values:
            row[name] = statistics.mean(values) if name == "accuracy" else statistics.median(values)
    accuracies = [each["accuracy"] for each in rounds if each.get("accuracy") is not None]
    row["accuracies"] = accuracies
    return row


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Write the rows as a table of Markdown, with the ratio of wall time of lightkit to each."""
    own = next((row.get("wall_s") for row in rows if row["tool"].startswith("lightkit")), None)
    lines = [
        "| tool | wall s | CPU s | peak RSS MB | images/s, later epochs"
        " | accuracy | lightkit / tool |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        if "wall_s" not in row:
            lines.append(f"| {row['tool']} | {row['note']} | | | | | |")
            continue
        speed = "" if row.get("images_per_s") is None else f"{row['images_per_s']:.1f}"
        accuracy = "" if row.get("accuracy") is None else f"{row['accuracy']:.3f}"
        ratio = "" if own is None else f"{own / row['wall_s']:.2f}"
        used = f"{row['wall_s']:.1f} | {row['cpu_s']:.0f} | {row['peak_mb']:,.0f}"
        lines.append(f"| {row['tool']} | {used} | {speed} | {accuracy} | {ratio} |")
    return "\n".join(lines)


def _place_weights(environments: Path, weights: Path) -> None:
    """Put the weights where torchvision looks for those that it would download."""
    folder = environments / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for name in _TORCH_NAMES:
        if not (folder / name).exists():
            shutil.copyfile(weights, folder / name)


def _describe_machine() -> str:
    from lightkit.hardware import this_machine

    machine = this_machine()
    sets = ", ".join(
        name for name in machine.instruction_sets if name.startswith(("avx", "amx", "neon"))
    )
    load = os.getloadavg()[0]
    versions = ", ".join(
        f"{name} {machine.versions[name]}" for name in ("torch",) if name in machine.versions
    )
    return (
        f"{machine.cpu}, {machine.cores} cores, {sets}; {versions}; Python"
        f" {platform.python_version()}; load {load:.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
