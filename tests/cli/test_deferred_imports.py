"""A start does not import what torchmetrics takes a name of; who uses it gets the real module."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

# Each module is imported in a fork of one process, which has imported Lightning; as torchmetrics
# imports it, but for those of the user's.
STARTING = """\
import os, sys
from contextlib import ExitStack
from importlib import import_module
from lightkit.cli.deferred_imports import replacing_packages
from lightkit.cli.heap import freezing_imports

PACKAGES = ("scipy.signal", "matplotlib", "transformers")

with freezing_imports():
    import lightkit.cli.lightning_cli
    # what scipy.signal needs besides itself is imported once, and not in each fork
    import scipy.interpolate, scipy.ndimage, scipy.optimize, scipy.stats
    begun = [name for name in sys.modules if name.startswith(tuple(f"{one}." for one in PACKAGES))]
    assert not begun, begun
    child = 1
    for name in sys.argv[1:]:
        if not (child := os.fork()):
            with ExitStack() as stack:
                if not name.endswith("_users"):
                    stack.enter_context(replacing_packages())
                module = import_module(name)
            break
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            print(name)
if child:
    left = [name for name in sys.modules if name.startswith(PACKAGES)]
    assert not left, left
    sys.exit()

module.check()

# what a module imports later is the real one
if name.startswith("scipy"):
    import scipy.signal
    assert sys.modules["scipy.signal"] is scipy.signal
    assert not hasattr(scipy.signal, "no_such_window")
    assert scipy.signal.convolve([1, 2], [3]).tolist() == [3, 6]
    assert scipy.signal.windows is sys.modules["scipy.signal.windows"]
if name.startswith("matplotlib"):
    import matplotlib.pyplot
    from matplotlib import axes, colors, style
    assert matplotlib.axes is axes and matplotlib.colors is colors is matplotlib.cm.colors
    assert issubclass(axes.Axes, matplotlib.artist.Artist)
    assert isinstance(matplotlib.pyplot.subplots()[1], axes.Axes)
if name.startswith("transformers"):
    import transformers
    assert isinstance(transformers.AutoModel, type)
    assert issubclass(transformers.BertModel, transformers.PreTrainedModel)
os._exit(0)  # a million objects need not be freed
"""
_WINDOWS = {
    "nothing": "from numpy import array\nwindow = lambda: array([0, 1, 0])",
    "module": "import scipy.signal\nwindow = lambda: scipy.signal.get_window('hann', 3, False)",
    "alias": "import scipy.signal as s\nwindow = lambda: s.windows.hann(3)",
    "name": "from scipy.signal import get_window\nwindow = lambda: get_window('hann', 3, False)",
    "all_names": "from scipy.signal import *\nwindow = lambda: get_window('hann', 3, False)",
    "submodule": "import scipy.signal.windows as w\nwindow = lambda: w.hann(3)",
    "full_name": "import scipy.signal.windows\nwindow = lambda: scipy.signal.windows.hann(3)",
    "name_of_submodule": "from scipy.signal.windows import hann\nwindow = lambda: hann(3)",
    "name_in_package": "from scipy import signal\nwindow = lambda: signal.windows.hann(3)",
}
SCIPY = {
    name: f"{text}\ndef check(): assert window().tolist() == [0, 1, 0], window()"
    for name, text in _WINDOWS.items()
}
PLOTTING = """\
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy
def check():
    metric = MetricCollection([BinaryAccuracy()])
    metric.update(torch.tensor([1, 0]), torch.tensor([1, 1]))
    (figure, axes), = metric.plot()
    import matplotlib.pyplot
    assert isinstance(figure, matplotlib.pyplot.Figure)
    assert [line.get_ydata().tolist() for line in axes.lines] == [[0.5]]
    with matplotlib.pyplot.style.context("dark_background"):
        assert metric.plot(ax=axes, together=True)[1] is axes
    try:
        metric.plot(ax=[figure], together=True)
    except ValueError:
        return
    raise AssertionError("a figure is no axes")
"""
MATPLOTLIB = {
    "nothing": "check = lambda: None",
    "pyplot": "import matplotlib.pyplot as plt\ndef check(): assert plt.figure().number == 1",
    "full_name": "import matplotlib.figure\ndef check(): assert matplotlib.figure.Figure().dpi",
    "imported": """\
import matplotlib.backends as b
def check():
    assert b.registry.backend_registry is b.backend_registry
    assert b.__spec__.origin == b.__file__
""",
    "name": "from matplotlib import colors\ndef check(): assert colors.to_rgb('r') == (1, 0, 0)",
    "version": "import matplotlib as m\ndef check(): assert m.__version__ and m.rcParams",
    "derived": """\
from matplotlib.axes import Axes
class Own(Axes): pass
def check():
    import matplotlib.axes
    assert Own.__bases__ == (matplotlib.axes.Axes,)
""",
    "style": """\
from matplotlib import pyplot, style
@style.context("dark_background")
def read(): return pyplot.rcParams["axes.facecolor"]
def check(): assert (pyplot.rcParams["axes.facecolor"], read()) == ("white", "black")
""",
    "all_names": """\
from matplotlib.pyplot import *
def check(): assert figure().number == 1
""",
    "union": """\
from matplotlib.axes import Axes
union = Axes | None
def check():
    import matplotlib.axes
    assert union == matplotlib.axes.Axes | None
""",
    "metrics": PLOTTING,
    "users": """\
import matplotlib.axes, matplotlib.pyplot as plt
kinds = (type(matplotlib.axes.Axes), plt.Figure.__module__)
def check():
    import matplotlib.pyplot
    assert kinds == (type, "matplotlib.figure") and plt is matplotlib.pyplot
""",
}
TRANSFORMERS = {
    "nothing": "check = lambda: None",
    "version": "import transformers\ndef check(): assert transformers.__version__.count('.') == 2",
    "name": """\
from transformers import PreTrainedModel
class Own(PreTrainedModel): pass
def check():
    import transformers
    assert Own.__bases__ == (transformers.PreTrainedModel,)
""",
    "full_name": """\
import transformers.models.bert
def check(): assert transformers.models.bert.BertConfig().num_attention_heads == 12
""",
    "metrics": """\
from torchmetrics.functional.text.bert import AutoModel
def check():
    from transformers import BertConfig
    settings = dict(hidden_size=4, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
    model = AutoModel.from_config(BertConfig(**settings, intermediate_size=4))
    assert type(model).__name__ == "BertModel"
    import transformers
    assert AutoModel.from_config.__self__ is transformers.AutoModel
""",
}


PACKAGES = {"scipy": SCIPY, "matplotlib": MATPLOTLIB, "transformers": TRANSFORMERS}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of the modules whose check fails; each is imported during a start."""
    folder = tmp_path_factory.mktemp("modules")
    names = []
    for package, texts in PACKAGES.items():
        if find_spec(package) is None:
            continue
        for name, text in texts.items():
            names.append(f"{package}_{name}")
            (folder / f"{names[-1]}.py").write_text(f"{text}\n", encoding="utf-8")
    command = [sys.executable, "-c", STARTING, *names]
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True, timeout=500
    )
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_that_uses_a_package_gets_the_real_one(package: str, failed: list[str]) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    assert [name for name in failed if name.startswith(package)] == []
