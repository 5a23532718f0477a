r"""Write constraints.txt from what pip resolves under several Python versions.

for v in 3.11 3.12 3.13 3.14; do
    python$v -m pip install --dry-run --ignore-installed --report /tmp/$v.json \
        '.[dev,docs,bench,onnx,delta,comet,wandb,apprise,timm,spark,ray,serve,sweep,text]'
done
python scripts/constraints.py /tmp/3.11.json /tmp/3.12.json /tmp/3.13.json /tmp/3.14.json >
constraints.txt

constraints-tpu.txt is the same for '.[dev,timm,tpu,petastorm]' torch==2.9.0 torchvision==0.24.0, up
to Python 3.12 with pyarrow==14.0.2 numpy==1.26.4 pandas==2.3.3 too, and with all but these and what
they hold back as in constraints.txt: pip's --constraint <(grep -vE
'^(torch|torchvision|pyarrow|numpy|pandas|setuptools|scipy|contourpy)==' constraints.txt).
"""

from __future__ import annotations

import json
import re
import sys
from itertools import groupby
from pathlib import Path

HEAD = """\
# The newest versions that pass the tests, on Python 3.11 to 3.14. Packages and versions only.
# What torch itself pins to the digit (its CUDA libraries and triton) is left to torch.
"""
HEAD_TPU = """\
# For TPUs, torch 2.9, the last that torch-xla supports; and for petastorm, pyarrow 14, numpy 1 \
and what goes with them.
# On Python 3.13, which these have no packages for, there is no petastorm. \
Everything else is as in constraints.txt.
# pip install --constraint constraints-tpu.txt 'lightkit-train[tpu]'
# pip install --constraint constraints-tpu.txt 'lightkit-train[petastorm]'
"""
LEFT_TO_TORCH = ("nvidia-", "cuda-", "triton")
OWN = ("nvidia-ml-py",)


def versions_in(report: Path) -> tuple[str, dict[str, str]]:
    """Give the Python version of a report of pip's, and the version of each package in it."""
    content = json.loads(report.read_text(encoding="utf-8"))
    found = [package["metadata"] for package in content["install"]]
    names = {
        re.sub(r"[-_.]+", "-", package["name"].lower()): package["version"] for package in found
    }
    return content["environment"]["python_version"], names


def lines_for(name: str, versions: dict[str, str | None]) -> list[str]:
    """Give one line a version of a package.

    With the Python versions that it is for where there are several.

    Args:
        name: The package.
        versions: Its version by Python version, oldest first; None where it is not needed.
    """
    pythons = list(versions)
    runs = [
        (version, list(run))
        for version, run in groupby(pythons, key=lambda python: versions[python])
    ]
    wanted = [(version, run) for version, run in runs if version is not None]
    if len({version for version, _ in wanted}) == 1:
        return [f"{name}=={wanted[0][0]}"]
    lines = []
    for version, run in wanted:
        after = pythons.index(run[-1]) + 1
        bounds = [f'python_version >= "{run[0]}"'] if run[0] != pythons[0] else []
        bounds += [f'python_version < "{pythons[after]}"'] if after < len(pythons) else []
        lines.append(f"{name}=={version}; {' and '.join(bounds)}")
    return lines


def main() -> None:
    """Merge the reports that the command line names."""
    by_python = dict(
        sorted(
            (versions_in(Path(name)) for name in sys.argv[1:]),
            key=lambda pair: pair[0].split(".")[1],
        )
    )
    names = sorted(
        {name for versions in by_python.values() for name in versions if name != "lightkit-train"}
    )
    print(HEAD_TPU if "torch-xla" in names else HEAD, end="")
    for name in names:
        if name in OWN or not name.startswith(LEFT_TO_TORCH):
            print(
                "\n".join(
                    lines_for(
                        name, {python: versions.get(name) for python, versions in by_python.items()}
                    )
                )
            )


if __name__ == "__main__":
    main()
