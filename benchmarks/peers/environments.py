"""Make an environment for each tool.

`python benchmarks/peers/environments.py FOLDER` makes them with the Python of lightkit.

A `.pth` file in each points at the packages of the Python that runs this, so that torch,
torchvision and numpy are the same for all and are installed once. What a tool needs in addition is
installed in its own environment.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from pathlib import Path

PACKAGES = {
    "ultralytics": ["ultralytics==8.4.190"],
    "fastai": ["fastai==2.8.12"],
    "transformers": ["transformers==5.24.0", "accelerate==1.15.0"],
    "timm": ["timm==1.0.31"],
}
TRACKERS = ("clearml", "comet", "dvc", "mlflow", "raytune", "tensorboard", "wandb", "sync")
"""Settings of Ultralytics that are on where a package is installed."""
TIMM_TRAIN = "https://raw.githubusercontent.com/huggingface/pytorch-image-models/v1.0.31/train.py"


def main() -> int:
    """Make what is not there yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the environments go, a folder each")
    parser.add_argument(
        "--only", nargs="*", default=sorted(PACKAGES), choices=sorted(PACKAGES), metavar="TOOL"
    )
    parser.add_argument(
        "--timm-train", type=Path, metavar="FILE", help="timm's train.py; downloaded without it"
    )
    options = parser.parse_args()
    for tool in options.only:
        make_environment(options.folder / tool, PACKAGES[tool])
        print(f"made {options.folder / tool}")
    if "ultralytics" in options.only:
        switch_trackers_off(options.folder / "ultralytics")
    if "timm" in options.only:
        script = options.folder / "timm" / "train.py"
        if options.timm_train is not None:
            script.write_bytes(options.timm_train.read_bytes())
        elif not script.exists():
            urllib.request.urlretrieve(TIMM_TRAIN, script)
    return 0


def switch_trackers_off(environment: Path) -> None:
    """Have Ultralytics leave out the trackers that the shared packages bring.

    Nobody gets them with it alone.

    Args:
        environment: That of Ultralytics.
    """
    config = environment.resolve() / "config"
    config.mkdir(exist_ok=True)
    settings = [f"{name}=False" for name in TRACKERS]
    environ = {**os.environ, "YOLO_CONFIG_DIR": str(config), "YOLO_OFFLINE": "true"}
    subprocess.run([environment / "bin" / "yolo", "settings", *settings], check=True, env=environ)


def make_environment(folder: Path, packages: list[str]) -> None:
    """Make an environment that sees the packages of this Python, and install others into it.

    Args:
        folder: The environment.
        packages: With their versions.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    own = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    Path(own, "shared.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n", encoding="utf-8")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)


if __name__ == "__main__":
    sys.exit(main())
