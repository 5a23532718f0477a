"""Make the environment of the test of RF-DETR: `python scripts/rfdetr_environment.py FOLDER`.

RF-DETR asks for a torchmetrics below 1.9, and brings transformers, OpenCV and others, which
lightkit needs not. The packages of the environment that runs this script are used where the
versions fit, so that torch is not installed twice.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

REQUIREMENT = "rfdetr[cli,train]==1.11.2"
ROOT = Path(__file__).resolve().parent.parent


def make_environment(folder: Path) -> Path:
    """Make the environment, unless it is there, and return its Python.

    Raises:
        subprocess.CalledProcessError: If RF-DETR cannot be installed; its output says why.
    """
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if done.is_file() and done.read_text(encoding="utf-8") == REQUIREMENT:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    own = (
        folder
        / "lib"
        / f"python{sys.version_info.major}.{sys.version_info.minor}"
        / "site-packages"
    )
    (own / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n", encoding="utf-8")
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        REQUIREMENT,
    ]
    subprocess.run(install, check=True, capture_output=True, text=True)
    done.write_text(REQUIREMENT, encoding="utf-8")
    return python


if __name__ == "__main__":
    print(make_environment(Path(sys.argv[1])))
