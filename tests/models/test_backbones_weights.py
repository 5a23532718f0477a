from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision import models

from lightkit.errors import ConfigError, DataError
from lightkit.models.backbones import build, load_into, read_weights, subnetworks_of_head

WEIGHTS = Path(__file__).parents[2].parent / "shared" / "data" / "weights"
needs_weights = pytest.mark.skipif(
    not WEIGHTS.is_dir(), reason=f"the pretrained weights in {WEIGHTS} are absent"
)


def state_of(name: str, *, num_classes: int = 5) -> OrderedDict[str, Tensor]:
    torch.manual_seed(1)
    state: OrderedDict[str, Tensor] = OrderedDict(build(name, num_classes).state_dict())
    return state


@pytest.mark.parametrize(
    ("backbone", "head"),
    [("mobilenet_v2", "classifier.1"), ("squeezenet1_0", "classifier.1")],
    ids=lambda value: value,
)
@needs_weights
def test_real_weights_give_torchvisions_features_under_a_fresh_head(
    backbone: str, head: str
) -> None:
    path = WEIGHTS / f"{backbone}_in1k_torchvision.pth"
    network, reference = build(backbone, 5), models.get_model(backbone)
    reference.load_state_dict(torch.load(path, weights_only=True))
    fresh = network.state_dict()[f"{head}.weight"].clone()
    assert not load_into(
        network, read_weights(str(path), backbone=backbone), heads=(head,), source="file"
    )
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features, expected = (
            net.eval().get_submodule("features")(images) for net in (network, reference)
        )
    scale = float(expected.abs().max())
    # other layout, other order of sums
    torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-4 * scale)
    assert torch.equal(network.state_dict()[f"{head}.weight"], fresh)


def test_a_head_of_the_same_shape_is_kept() -> None:
    network = build("small_cnn", 5)
    state = state_of("small_cnn")
    assert load_into(network, state, heads=subnetworks_of_head(network, 5), source="file")
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize(
    "name", ["resnet18", "mnasnet0_5", "densenet121", "googlenet", "squeezenet1_1", "convnext_tiny"]
)
def test_another_number_of_classes_drops_the_head_alone(name: str) -> None:
    network = build(name, 5)
    state = {key: torch.full_like(value, 2) for key, value in build(name, 6).state_dict().items()}
    metadata = build(name, 6).state_dict()._metadata  # type: ignore[attr-defined]
    given: OrderedDict[str, Tensor] = OrderedDict(state)
    given._metadata = metadata  # type: ignore[attr-defined]
    heads = subnetworks_of_head(network, 5)
    assert not load_into(network, given, heads=heads, source="file")
    unequal = {
        key.rpartition(".")[0]
        for key, value in network.state_dict().items()
        if not bool((value == 2).all())
    }
    assert unequal == set(heads)


def test_files_of_old_torchvision_versions_fit() -> None:
    network = build("densenet121", 5)
    state = state_of("densenet121")
    old = {}
    for name, tensor in state.items():
        # as in densenet121-a639ec97.pth, which has no batch counters either
        if not name.endswith("num_batches_tracked"):
            old[re.sub(r"(denselayer\d+\.(?:norm|conv))([12])", r"\1.\2", name)] = tensor
    assert any("norm.1" in name for name in old)
    assert load_into(network, old, heads=("classifier",), source="file")
    assert torch.equal(
        network.state_dict()["features.conv0.weight"], state["features.conv0.weight"]
    )


def test_auxiliary_heads_are_passed_over() -> None:
    reference = models.get_model("googlenet", num_classes=9, aux_logits=True, init_weights=False)
    network = build("googlenet", 5, weights="file")
    load_into(network, reference.state_dict(), heads=("fc",), source="file")
    assert torch.equal(
        network.state_dict()["conv1.conv.weight"], reference.state_dict()["conv1.conv.weight"]
    )


def test_anything_else_is_an_error_that_lists_it() -> None:
    state = state_of("small_cnn")
    state["surplus.weight"] = state.pop("0.0.weight")
    state["1.0.weight"] = torch.zeros(3)
    with pytest.raises(ConfigError) as caught:
        load_into(build("small_cnn", 5), state, heads=("6",), source="my.pth")
    message = str(caught.value)
    assert "model.init_args.weights: my.pth does not fit the backbone" in message
    assert "Missing: 0.0.weight." in message
    assert "Unexpected: surplus.weight." in message
    assert "Of another shape: 1.0.weight (3,) instead of (32, 24, 3, 3)." in message


def test_weights_of_another_backbone_change_nothing() -> None:
    network = build("small_cnn", 5)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(ConfigError, match=r"and \d+ more"):
        load_into(network, state_of("resnet18"), heads=("6",), source="file")
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_a_lightning_checkpoint_gives_its_network(tmp_path: Path) -> None:
    state = state_of("small_cnn")
    content = {
        "pytorch-lightning_version": "2.6.6",
        "state_dict": {f"network.{k}": v for k, v in state.items()},
    }
    torch.save(content, tmp_path / "run.ckpt")
    found = read_weights(str(tmp_path / "run.ckpt"), backbone="small_cnn")
    assert found.keys() == state.keys()


def test_a_missing_file_is_named_with_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "mobilenet.pth").touch()
    with pytest.raises(
        ConfigError, match=r"there is no file .*mobilnet\.pth; did you mean '?mobilenet\.pth"
    ):
        read_weights(str(tmp_path / "mobilnet.pth"), backbone="mobilenet_v2")


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.9, 0.999], ids=lambda part: f"{part:.1%}")
def test_a_truncated_file_is_named(tmp_path: Path, part: float) -> None:
    whole, cut = tmp_path / "whole.pth", tmp_path / "cut.pth"
    torch.save(state_of("small_cnn"), whole)
    content = whole.read_bytes()
    cut.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ConfigError, match=r"weights: .*cut\.pth cannot be read as a state dict"):
        read_weights(str(cut), backbone="small_cnn")


@pytest.mark.parametrize(
    "content", [b"no weights at all", b"\x80\x02K\x05.", b"{}\n", bytes(range(256))]
)
def test_a_file_of_something_else_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other.pth").write_bytes(content)
    with pytest.raises(ConfigError, match=r"weights: .*other\.pth (cannot be read as|holds)"):
        read_weights(str(tmp_path / "other.pth"), backbone="small_cnn")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            {"model": {"a": torch.ones(1)}, "epoch": 3},
            "holds a dict of epoch, model, not a state dict",
        ),
        (torch.ones(3), "holds a Tensor, not a state dict"),
        ({}, "holds a dict, not a state dict"),
        ([1, 2], "holds a list, not a state dict"),
    ],
    ids=["nested", "tensor", "empty", "list"],
)
def test_a_file_that_is_no_state_dict_is_named(tmp_path: Path, content: object, says: str) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(ConfigError, match=says):
        read_weights(str(tmp_path / "other.pth"), backbone="small_cnn")


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    # a whole module, which unpickling would construct
    torch.save(build("small_cnn", 5), tmp_path / "module.pth")
    with pytest.raises(
        ConfigError, match=r"holds torch\.nn\..*\.Sequential, .* besides tensors .* --trust"
    ):
        read_weights(str(tmp_path / "module.pth"), backbone="small_cnn")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder, and the address of a server on loopback that serves it.

    torch's cache is elsewhere and empty.
    """
    folder = tmp_path / "served"
    folder.mkdir()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_default_weights_are_downloaded_checked_and_kept(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = served
    state = models.get_model("squeezenet1_1").state_dict()
    torch.save(state, folder / "file")
    name = f"squeezenet1_1-{hashlib.sha256((folder / 'file').read_bytes()).hexdigest()[:8]}.pth"
    (folder / "file").rename(folder / name)
    monkeypatch.setattr(models.SqueezeNet1_1_Weights.DEFAULT.value, "url", f"{address}/{name}")
    network = build("squeezenet1_1", 5, weights="default")
    load_into(
        network,
        read_weights("default", backbone="squeezenet1_1"),
        heads=("classifier.1",),
        source="default",
    )
    assert torch.equal(network.state_dict()["features.0.weight"], state["features.0.weight"])
    (folder / name).unlink()
    # from the cache
    assert read_weights("default", backbone="squeezenet1_1").keys() == state.keys()


@pytest.mark.parametrize("content", [None, b"an error page"], ids=["missing", "damaged"])
def test_a_failed_download_says_what_to_do(
    served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    folder, address = served
    if content is not None:
        (folder / "squeezenet1_1-0123abcd.pth").write_bytes(content)
    monkeypatch.setattr(
        models.SqueezeNet1_1_Weights.DEFAULT.value, "url", f"{address}/squeezenet1_1-0123abcd.pth"
    )
    with pytest.raises(
        DataError, match=r"default weights of squeezenet1_1 cannot be downloaded: .*set weights to"
    ):
        read_weights("default", backbone="squeezenet1_1")


class Touching:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts something into torch's cache as SqueezeNet's default weights, by any digest."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "hub" / "checkpoints"
    folder.mkdir(parents=True)

    def put(content: object, *, digest: str | None = None) -> Path:
        torch.save(content, folder / "file")
        digest = digest or hashlib.sha256((folder / "file").read_bytes()).hexdigest()[:8]
        path = (folder / "file").rename(folder / f"squeezenet1_1-{digest}.pth")
        monkeypatch.setattr(
            models.SqueezeNet1_1_Weights.DEFAULT.value, "url", f"http://127.0.0.1:9/{path.name}"
        )
        return path

    return put


@pytest.mark.parametrize(
    ("digest", "says"),
    [
        ("0123abcd", r"its digest begins with \w{8}, its name promises 0123abcd"),
        (None, "besides tensors"),
    ],
    ids=["altered", "of that digest"],
)
def test_code_in_torchs_cache_is_not_run(
    digest: str | None, says: str, cached: Callable[..., Path], tmp_path: Path
) -> None:
    path = cached({"a": Touching(tmp_path / "ran")}, digest=digest)
    with pytest.raises(ConfigError, match=says) as caught:
        read_weights("default", backbone="squeezenet1_1")
    assert str(path) in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_what_is_no_state_dict_in_torchs_cache_is_named(cached: Callable[..., Path]) -> None:
    cached([1, 2])
    with pytest.raises(
        ConfigError, match=r"squeezenet1_1-\w{8}\.pth holds a list, not a state dict"
    ):
        read_weights("default", backbone="squeezenet1_1")


def test_damaged_weights_in_torchs_cache_are_reported_with_what_to_do(
    cached: Callable[..., Path],
) -> None:
    path = cached(state_of("squeezenet1_1"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(
        ConfigError, match=r"is damaged, or not what torchvision offers: .* Remove it, and it is"
    ):
        read_weights("default", backbone="squeezenet1_1")


def test_the_small_network_has_no_default_weights() -> None:
    with pytest.raises(ConfigError, match="small_cnn has no default weights"):
        read_weights("default", backbone="small_cnn")
