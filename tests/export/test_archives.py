"""Archives: what could run code in a file of torch.export is found before the file is loaded."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit import runs
from lightkit.errors import ConfigError
from lightkit.export.archives import check_archive
from lightkit.export.fresh.runtimes import open_model


class Doubled(nn.Module):
    """A layer, a constant, and arithmetic on sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("shift", torch.ones(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Give twice as many rows."""
        given = self.layer(x) + self.shift
        return torch.cat([given, given])


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.fixture(scope="session")
def _honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archives") / "model.pt2"
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(Doubled().eval(), (torch.rand(4, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path, extra_files={"lightkit.json": '{"format": "torch_export"}'})
    return path


@pytest.fixture
def honest(tmp_path: Path, _honest: Path) -> Path:
    """A file whose first size is open."""
    return Path(shutil.copy(_honest, tmp_path / "model.pt2"))


def altered(path: Path, change: Callable[[str, bytes], bytes], **more: bytes) -> None:
    """Write an archive again with other records."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(records)).partition("/")[0]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, change(name.partition("/")[2], content))
        for name, content in more.items():
            archive.writestr(f"{root}/{name}" if name != "version" else name, content)


def pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def with_weight(path: Path, trap: Path) -> None:
    """A weight is said to be pickled."""

    def change(name: str, content: bytes) -> bytes:
        if not name.endswith("weights_config.json"):
            return content
        said = json.loads(content)
        next(iter(said["config"].values())).update(use_pickle=True, path_name="evil_0")
        return json.dumps(said).encode()

    altered(path, change, **{"data/weights/evil_0": pickled({"x": Touches(trap)})})


def with_constant(path: Path, trap: Path) -> None:
    """A constant is an object of its own kind, under a name that is always unpickled."""

    def change(name: str, content: bytes) -> bytes:
        if not name.endswith("constants_config.json"):
            return content
        said = json.loads(content)
        next(iter(said["config"].values())).update(path_name="opaque_obj_0")
        return json.dumps(said).encode()

    altered(path, change, **{"data/constants/opaque_obj_0": pickled({"x": Touches(trap)})})


def with_samples(path: Path, trap: Path) -> None:
    """The samples that come with the graph are objects; torch unpickles them after tensors alone were refused."""
    altered(path, lambda name, content: pickled(((Touches(trap),), {})) if "sample_inputs" in name else content)


def with_size(path: Path, trap: Path) -> None:
    """A size is no arithmetic but a call."""

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(item) for item in value]
        if isinstance(value, dict):
            return {key: code if key == "expr_str" else walk(item) for key, item in value.items()}
        return value

    code = f"open({str(trap)!r}, 'w')"
    altered(path, lambda name, old: json.dumps(walk(json.loads(old))).encode() if "models/" in name else old)


def with_condition(path: Path, trap: Path) -> None:
    """A condition on the inputs calls something."""

    def change(name: str, content: bytes) -> bytes:
        if "models/" not in name:
            return content
        return json.dumps({**json.loads(content), "guards_code": [f"open({str(trap)!r}, 'w')"]}).encode()

    altered(path, change)


def with_tree(path: Path, trap: Path) -> None:
    """The tree of the inputs names a class that is to be imported."""
    tree = json.dumps([1, {"context": json.dumps({"__enum__": True, "fqn": f"{trap.name}:X", "name": "Y"})}])

    def change(name: str, content: bytes) -> bytes:
        if "models/" not in name:
            return content
        said = json.loads(content)
        said["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = tree
        return json.dumps(said).encode()

    altered(path, change)


def with_old(path: Path, trap: Path) -> None:
    """There are records of the older form as well, for a reader that fails on the newer ones."""
    altered(path, lambda _, content: content, version=b"8.8")


TRAPS = [with_weight, with_constant, with_samples, with_size, with_condition, with_tree, with_old]


def test_a_graph_with_tensors_and_open_sizes_is_taken(honest: Path) -> None:
    check_archive(honest)
    (given,) = open_model(honest)([torch.rand(6, 4).numpy()])
    assert given.shape == (12, 2)


@pytest.mark.parametrize("trap", TRAPS, ids=[make.__name__ for make in TRAPS])
def test_what_could_run_code_is_refused_before_it_does(
    tmp_path: Path, honest: Path, trap: Callable[[Path, Path], None]
) -> None:
    trap(honest, tmp_path / "sprung")
    with pytest.raises(ConfigError, match=r"model.pt2 holds .* beside tensors and plain values.*--trust") as raised:
        open_model(honest)
    assert not (tmp_path / "sprung").exists()
    assert raised.value.exit_code == 2


def test_trust_lets_a_pickled_sample_pass_with_a_warning(
    tmp_path: Path, honest: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with_samples(honest, tmp_path / "sprung")
    with runs.trusting():
        check_archive(honest, shown="models:/net@best")
    assert "--trust: models:/net@best holds builtins.getattr, pathlib.Path" in caplog.text


def test_a_weight_under_two_spellings_is_not_taken_for_bytes(tmp_path: Path, honest: Path) -> None:
    # torch's reader does not tell upper from lower case.
    def change(name: str, content: bytes) -> bytes:
        if name == "data/weights/weight_0":
            return pickled({"x": Touches(tmp_path / "sprung")})
        if not name.endswith("weights_config.json"):
            return content
        said = json.loads(content)
        first = next(iter(said["config"].values()))
        said["config"]["other"] = {**first, "use_pickle": True, "path_name": first["path_name"].upper()}
        return json.dumps(said).encode()

    altered(honest, change)
    with pytest.raises(ConfigError, match="WEIGHT_0"):
        check_archive(honest)


@pytest.mark.parametrize(
    "size",
    ["2*s0", "FloorDiv(Mul(Integer(294), Symbol('s14', positive=True, integer=True)), 2)", "Max(1, s0 - 3)", "-int_oo"],
)
def test_arithmetic_on_sizes_is_plain(tmp_path: Path, honest: Path, size: str) -> None:
    altered(honest, lambda name, old: json.dumps({"expr_str": size}).encode() if name.startswith("models/") else old)
    check_archive(honest)


@pytest.mark.parametrize(
    "size",
    ["__import__('os')", "(1).__class__", "S('x')", "eval(Symbol('x'))", "[s0 for s0 in s1]", "\uff45val(s0)", "s0("],
)
def test_other_expressions_are_not(tmp_path: Path, honest: Path, size: str) -> None:
    altered(honest, lambda name, old: json.dumps({"expr_str": size}).encode() if name.startswith("models/") else old)
    with pytest.raises(ConfigError, match="the expression"):
        check_archive(honest)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.98], ids=["empty", "half", "cut at the end"])
def test_a_file_that_was_cut_is_told_in_a_line(honest: Path, share: float) -> None:
    content = honest.read_bytes()
    honest.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ValueError, match=r"model.pt2: torch.export cannot read it: ") as raised:
        check_archive(honest)
    assert "\n" not in str(raised.value)
