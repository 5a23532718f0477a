"""`lightkit register`, what it leaves in MLflow, and what MLflow serves then."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import urllib.error
import urllib.request
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lightkit import runs
from lightkit.images.reading import read_rgb
from tests.cli.conftest import House
from tests.cli.mlflow_process import started
from tests.registry.conftest import BLOCKED, SmallResNet

pytestmark = [
    pytest.mark.timeout(900),  # on a busy machine: each starts several processes
    # 2026-11: mlflow 3.17 to itself while it is imported, and what it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SHARED = Path(__file__).parents[2].parent / "shared" / "data"
FLOWERS = """\
seed_everything: 7
model: {class_path: ImageClassifier, init_args: {backbone: small_cnn}}
data: {class_path: ImageFolder, init_args: {root: photos, image_size: 32, num_workers: 0, batch_size: 64}}
trainer: {accelerator: cpu, max_epochs: 1}
logger: {mlflow: {}}
"""
PLAIN = ("-c", "small.yaml", "--trainer.logger=false")


@pytest.fixture(autouse=True)
def _no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def client(uri: str) -> Any:
    from mlflow import MlflowClient  # late: 2 s

    return MlflowClient(uri)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "register: which run? Say --run latest"),
        (("--run", "latest"), "register: under which name? Say --name"),
        (("--run", "latest", "--name", "a/b"), "--name: 'a/b' has a slash"),
        (("--run", "latest", "--name"), "register: --name: expected a word after it"),
        (("--run", "latest", "--name", "--quiet"), "register: --name: expected a word after it"),
        (("--run", "latest", "--name=a", "--name=b"), "register: --name is said twice: 'a' and 'b'"),
        (("--run", "latest", "--name=a", "--alias=v1"), "--alias: 'v1' is a name that MLflow keeps for itself"),
        (("--run", "latest", "--name=a", "--alias=none", "--alias=b"), "--alias: none stands alone"),
        (("--run", "latest", "--name=a", "--format=onnx"), "--format: expected torch_export or torchscript"),
        (("--run", "latest", "--name=a", "--opset=18"), "register: unexpected argument '--opset=18'"),
        (("--run", "latest", "--name=a"), "There is no run 'latest'"),
    ],
    ids=["no run", "no name", "slash", "no word", "an option", "twice", "alias", "none and one", "format", "opset",
         "no runs"],
)  # fmt: skip
def test_a_wrong_command_line_is_told_before_anything_is_built(house: House, words: tuple[str, ...], says: str) -> None:
    done = house("register", *words)
    assert done.code == 2
    assert says in done.err
    assert not (house.folder / "runs").exists()


def test_help_names_every_option(house: House) -> None:
    done = house("register", "--help")
    assert done.code == 0
    for option in ("--run", "--name", "--alias", "--format", "--tracking-uri", "--ckpt_path", "--trust"):
        assert f"\n  {option} " in done.out
    assert "mlflow models serve -m models:/flowers@challenger" in done.out


@pytest.mark.slow
def test_a_server_that_is_away_is_told_in_one_line_without_its_password(house: House) -> None:
    house.fit(*PLAIN)
    done = house("register", "--run", "latest", "--name=net", "--tracking-uri=http://me:sesame@127.0.0.1:9")
    assert done.code == 75
    assert done.err.startswith("error: MLflow at http://***@127.0.0.1:9 cannot open the registry: ")
    assert "The address comes from --tracking-uri; start the server, or name another" in done.err
    assert "sesame" not in done.err
    assert "Traceback" not in done.err
    done = house("register", "--run", "latest", "--name=net", "--tracking-uri=mlruns")
    assert done.code == 2
    assert "--tracking-uri is 'mlruns', a folder" in done.err
    folder = house.runs[-1]
    for checkpoint in (folder / "checkpoints").iterdir():
        checkpoint.unlink()
    done = house("register", "--run", "latest", "--name=net")
    assert done.code == 2
    assert "has no best checkpoint" in done.err


@pytest.mark.slow
def test_any_module_is_registered_at_a_server_under_a_run_of_its_own(house: House) -> None:
    folder = house.fit(*PLAIN)
    store = ("--backend-store-uri", f"sqlite:///{house.folder}/server.db", "--workers", "1")
    files = ("--artifacts-destination", str(house.folder / "files"))
    with started(house.folder, "server", *store, *files, healthy="/health") as address:
        words = ("register", "--run", "latest", "--name", "net", "--tracking-uri", address, "--format")
        done = house(*words, "torch_export")
        assert done.code == 0, done.err
        assert f"made  version 1 of net (challenger) in MLflow at {address}" in done.out
        done = house(*words, "torchscript", "--alias", "tried", "--alias", "kept")
        assert done.code == 0, done.err
        registry = client(address)
        first, second = (registry.get_model_version("net", str(number)) for number in (1, 2))
        assert registry.get_registered_model("net").aliases == {"challenger": "1", "tried": "2", "kept": "2"}
        assert first.run_id == second.run_id  # found again, not made again
        made = registry.get_run(first.run_id)
        assert made.info.run_name == folder.name
        assert made.info.status == "FINISHED"
        assert made.data.metrics["val/loss"] > 0
        assert first.tags["run_folder"] == str(folder)
        assert "made  version 2" in done.out
        _answers_alike(folder, address)


def _answers_alike(folder: Path, address: str) -> None:
    """Compare both versions with the trained module."""
    import mlflow.pytorch  # late: 2 s

    checkpoint = torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    x = torch.randn(5, 3)
    hidden = torch.relu(x @ checkpoint["layers.0.weight"].T + checkpoint["layers.0.bias"])
    expected = hidden @ checkpoint["layers.2.weight"].T + checkpoint["layers.2.bias"]
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(address)
    try:
        for version in (1, 2):
            with (
                warnings.catch_warnings()
            ):  # 2026-11: torch 2.15 to mlflow 3.17, which reads TorchScript with torch.load
                warnings.simplefilter("ignore")
                loaded = mlflow.pytorch.load_model(f"models:/net/{version}")
            torch.testing.assert_close(loaded(x), expected)
    finally:
        mlflow.set_tracking_uri(before)


@pytest.fixture
def flowers(house: House) -> House:
    """A working directory with photos of five flowers, real ones where they are, and a config."""
    real = SHARED / "flower_photos"
    random = np.random.default_rng(0)
    for label, name in enumerate(["daisy", "dandelion", "roses", "sunflowers", "tulips"]):
        (house.folder / "photos" / name).mkdir(parents=True)
        files = sorted((real / name).glob("*.jpg"))[:10]
        for number in range(10):
            path = house.folder / "photos" / name / f"{number}.jpg"
            if files:
                with Image.open(files[number]) as photo:
                    photo.thumbnail((160, 160))  # as JSON, a whole one takes seconds
                    photo.save(path)
            else:
                pixels = random.integers(0, 50 * (label + 1), (40 + number, 60, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(path)
    house.write("flowers.yaml", FLOWERS)
    return house


@pytest.mark.slow
def test_mlflow_serves_a_registered_classifier_and_answers_as_predict_does(flowers: House) -> None:
    folder = flowers.fit("-c", "flowers.yaml")
    assert flowers("export", "--run", "latest", "--format", "torch_export").code == 0
    done = flowers("register", "--run", "latest", "--name", "flowers", "--alias", "champion")
    assert done.code == 0, done.err
    assert "takes images: uint8 (any, any, any, 3)" in done.out
    uri = f"sqlite:///{flowers.folder}/runs/mlflow.db"
    _check_version(client(uri), folder)
    photos = sorted((flowers.folder / "photos").glob("*/*.jpg"))[:32]
    ended = _end_of_training(client(uri))
    predicted = flowers("predict", "--run", "latest", "--output", "p.jsonl", "--top-k", "1", *map(str, photos))
    assert predicted.code == 0, predicted.err
    assert _end_of_training(client(uri)) == ended
    rows = [json.loads(line) for line in (flowers.folder / "p.jsonl").read_text().splitlines()]
    serve = ("models", "serve", "-m", "models:/flowers@champion", "--env-manager", "local")
    with started(flowers.folder, *serve, healthy="/ping", environment={"MLFLOW_TRACKING_URI": uri}) as address:
        names = json.loads(client(uri).get_model_version_by_alias("flowers", "champion").tags["class_names"])
        for photo, row in zip(photos, rows, strict=True):
            status, answer = _post(address, [np.asarray(read_rgb(photo)).tolist()])
            assert status == 200, answer
            shares = answer["predictions"][0]
            assert names[int(np.argmax(shares))] == row["label"]
            assert max(shares) == pytest.approx(row["probability"], abs=1e-5)
        status, answer = _post(address, np.zeros((3, 20, 30, 3), int).tolist())
        assert np.shape(answer["predictions"]) == (3, 5)
        for wrong in ([[1, 2, 3]], np.zeros((1, 4, 4, 4), int).tolist(), np.full((1, 4, 4, 3), 300).tolist()):
            assert _post(address, wrong)[0] == 400


def _end_of_training(registry: Any) -> int:
    run_id = registry.get_model_version_by_alias("flowers", "champion").run_id
    return int(registry.get_run(run_id).info.end_time)


def _check_version(registry: Any, folder: Path) -> None:
    """Check that the version leads back to its run, and has the exports."""
    version = registry.get_model_version_by_alias("flowers", "champion")
    noted = json.loads((folder / "mlflow.json").read_text())
    assert version.run_id == noted["run_id"]
    assert version.tags["run_folder"] == str(folder)
    assert version.tags["run"] == f"flowers/{folder.name}"
    assert version.tags["checkpoint"] == "checkpoints/best.ckpt"
    assert version.tags["checkpoint_sha256"] == runs.digest(folder / "checkpoints" / "best.ckpt")
    assert version.tags["data_fingerprint"] == runs.read_json(folder / "manifest.json")["data"]["fingerprint"]  # type: ignore[index]
    assert version.tags["exports"] == f"runs:/{version.run_id}/export/flowers-1"
    kept = {entry.path for entry in registry.list_artifacts(version.run_id, "export/flowers-1")}
    assert kept == {"export/flowers-1/model.pt2", "export/flowers-1/export.json"}
    run = registry.get_run(version.run_id)
    assert run.info.end_time < version.creation_timestamp  # the training's end is not moved
    outputs = [output.model_id for output in run.outputs.model_outputs]
    assert version.source.removeprefix("models:/") in outputs


def _post(address: str, images: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{address}/invocations",
        data=json.dumps({"inputs": images}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.slow
def test_a_pickled_model_of_an_article_becomes_torchscript_that_needs_no_lightkit(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow.pytorch  # late: 2 s

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    torch.manual_seed(5)
    module, images = SmallResNet(1).eval(), torch.rand(6, 1, 28, 28)
    (house.folder / "runs").mkdir()
    uri, before = f"sqlite:///{house.folder}/runs/mlflow.db", mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        mlflow.create_experiment("fashion", artifact_location=str(house.folder / "runs" / "mlflow-artifacts"))
        mlflow.set_experiment("fashion")
        with mlflow.start_run():
            mlflow.pytorch.log_model(
                module, name="model", registered_model_name="fashion", input_example=images[:2].numpy(),
                pip_requirements=["torch", "numpy"], serialization_format="pickle",
            )  # fmt: skip
        mlflow.MlflowClient().set_registered_model_alias("fashion", "champion", "1")
    finally:
        mlflow.set_tracking_uri(before)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # which MLflow sets for the processes that follow
    words = ("export", "--run", "models:/fashion@champion", "--format", "torchscript", "--output", "out")
    refused = house(*words)
    assert refused.code == 2
    assert "holds a pickled module, and to load it is to run what it says. Say --trust" in refused.err
    done = house(*words, "--trust")
    assert done.code == 0, done.err
    torch.save(images, house.folder / "images.pt")
    code = "import torch; m = torch.jit.load('out/model.ts'); torch.save(m(torch.load('images.pt')), 'answers.pt')"
    subprocess.run([sys.executable, "-c", BLOCKED + code], cwd=house.folder, check=True, timeout=120, env={})
    answers = torch.load(house.folder / "answers.pt", weights_only=True)
    torch.testing.assert_close(answers, module(images), rtol=1e-5, atol=1e-6)
