"""What lightkit leaves out of the import of torchmetrics is there when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIGHT = "from lightkit.cli.light_imports import import_torchmetrics\nimport sys\n"


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", LIGHT + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_lightning_is_imported_without_scipys_signals_and_matplotlib() -> None:
    said = _run(
        "import_torchmetrics()\nimport lightkit.cli.lightning\n"
        "print([name for name in ('torchmetrics', 'scipy.signal', 'matplotlib') if name in sys.modules])"
    )
    assert said == "['torchmetrics']"


def test_a_metric_is_plotted_as_ever() -> None:
    said = _run(
        "import_torchmetrics()\n"
        "import torch\nfrom torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import os; os.environ['MPLBACKEND'] = 'agg'\n"
        "for metric in (MulticlassAccuracy(3), MulticlassConfusionMatrix(3)):\n"
        "    metric.update(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1]))\n"
        "    figure, axes = metric.plot()\n"
        "    print(type(figure).__module__, type(figure).__name__)\n"
    )
    assert said.splitlines() == ["matplotlib.figure Figure"] * 2


def test_the_real_modules_are_found_afterwards() -> None:
    said = _run(
        "import_torchmetrics()\n"
        "import scipy, scipy.signal, matplotlib, matplotlib.axes, matplotlib.pyplot\n"
        "print(scipy.signal.windows.hann(3).tolist(), scipy.signal is sys.modules['scipy.signal'])\n"
        "print(matplotlib.axes.Axes.__module__, matplotlib.pyplot.Figure.__name__, bool(matplotlib.__version__))\n"
    )
    assert said.splitlines() == ["[0.0, 1.0, 0.0] True", "matplotlib.axes._axes Figure True"]


@pytest.mark.parametrize(
    "before",
    ["import torchmetrics", "import matplotlib", "import scipy.signal"],
)
def test_what_was_imported_before_stays(before: str) -> None:
    code = f"{before}\nbefore = dict(sys.modules)\nimport_torchmetrics()\nimport torchmetrics\n"
    code += "print(all(sys.modules[name] is module for name, module in before.items()))"
    assert _run(code) == "True"


def test_a_version_that_is_not_known_is_imported_as_it_is() -> None:
    said = _run(
        "import lightkit.cli.light_imports as light\nlight._KNOWN = '0.'\n"
        "import_torchmetrics()\nprint('torchmetrics' in sys.modules)\n"
        "import torchmetrics\nprint('matplotlib.pyplot' in sys.modules, 'scipy.signal' in sys.modules)"
    )
    assert said.splitlines() == ["False", "True True"]


def test_an_import_that_fails_leaves_no_stand_in_behind() -> None:
    said = _run(
        "sys.modules['torchmetrics.functional'] = None\n"
        "try:\n    import_torchmetrics()\nexcept ImportError as error:\n    print('refused')\n"
        "import matplotlib.pyplot as plt\nprint(plt.Figure.__module__)"
    )
    assert said.splitlines() == ["refused", "matplotlib.figure"]


def test_the_garbage_collector_goes_on_where_it_was_on() -> None:
    said = _run(
        "import gc\nfrom lightkit.cli.light_imports import import_lightning\nimport_lightning()\n"
        "print('pytorch_lightning' in sys.modules, gc.isenabled())\n"
        "gc.disable()\nimport_lightning()\nprint(gc.isenabled())"
    )
    assert said.splitlines() == ["True True", "False"]


def test_nothing_is_said_at_the_end() -> None:
    code = "from lightkit.cli.light_imports import import_lightning\nimport_lightning()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "nanobind" not in done.stderr  # triton's bindings, which tell of all that is left over
    assert "leaked" not in done.stderr
