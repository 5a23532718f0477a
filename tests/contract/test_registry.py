"""`lightkit register`: a run's model in MLflow's registry.

What leads back from it, and what others load from there.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from tests.contract.mlflow_process import started
from tests.contract.registry import read_registry, tracking_uri
from tests.contract.workspace import ForkServer, Workspace, load_checkpoint, read_json

pytestmark = [
    pytest.mark.timeout(900),  # on a busy machine
    pytest.mark.filterwarnings("ignore:.*torch.jit.load:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning"),
]

AWAY = "http://me:sesame@127.0.0.1:9"
"""Where no server is."""

WITHOUT_LIGHTKIT = """\
import sys

for name in [*sys.modules]:
    if name.partition(".")[0] in ("lightkit", "pytorch_lightning"):
        del sys.modules[name]


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("lightkit", "pytorch_lightning"):
            raise ModuleNotFoundError(f"{name} is not installed here")


sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture(scope="module")
def registry(
    registered_original: Path, tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[dict[str, Any]]:
    """What MLflow's client reads of `registered`."""
    workspace = Workspace(tmp_path_factory.mktemp("reading") / "work", fork_server)
    yield read_registry(workspace, f"sqlite:///{registered_original}/runs/mlflow.db")
    workspace.close()


def run_of(folder: Path, job: str) -> Path:
    """Find the one run of a job."""
    (run,) = (path for path in folder.glob(f"runs/{job}/2*-*") if path.is_dir())
    return run


def answers_of_net(run: Path, x: torch.Tensor) -> torch.Tensor:
    """Compute what the trained `my_project.Net` of a run gives."""
    weights = load_checkpoint(run / "checkpoints" / "best.ckpt")["state_dict"]
    hidden = x @ weights["layers.0.weight"].T + weights["layers.0.bias"]
    return torch.as_tensor(hidden @ weights["layers.2.weight"].T + weights["layers.2.bias"])


def test_register_makes_a_version_that_its_alias_points_to(
    registered_original: Path, registry: dict[str, Any]
) -> None:
    printed = (registered_original / "register.out").read_text(encoding="utf-8")
    assert re.search(r"version 1 of flowers \(champion\)", printed)
    assert (
        f"MLFLOW_TRACKING_URI=sqlite:///{registered_original}/runs/mlflow.db mlflow models serve"
        in printed
    )
    assert registry["flowers"]["aliases"] == {"champion": "1"}


def test_alias_may_be_said_again(registry: dict[str, Any]) -> None:
    assert registry["net"]["aliases"] == {"tried": "1", "kept": "1"}


def test_the_tags_of_a_version_lead_back_to_its_run(
    registered_original: Path, registry: dict[str, Any]
) -> None:
    tags = registry["flowers"]["versions"]["1"]["tags"]
    run = run_of(registered_original, "pictures")
    assert tags["run"] == f"pictures/{run.name}"
    assert tags["run_folder"] == str(run)
    assert tags["checkpoint"] == "checkpoints/best.ckpt"
    assert (
        tags["checkpoint_sha256"]
        == hashlib.sha256((run / tags["checkpoint"]).read_bytes()).hexdigest()
    )
    assert tags["data_fingerprint"] == read_json(run / "manifest.json")["data"]["fingerprint"]
    assert json.loads(tags["class_names"]) == ["blues", "reds"]


def test_a_version_carries_its_model_card(
    registered_original: Path, registry: dict[str, Any]
) -> None:
    cards = [
        path.read_text(encoding="utf-8") for path in registered_original.glob("runs/**/README.md")
    ]
    (card,) = (text for text in cards if "# pictures" in text)
    start, block, text = card.split("---\n", 2)
    assert start == ""
    assert yaml.safe_load(block)["pipeline_tag"] == "image-classification"
    described = registry["flowers"]["versions"]["1"]["description"]
    assert described.startswith("Run pictures/")
    assert len(described) <= 5000
    assert "## Data" in described
    assert text.strip().startswith(described.partition("\n\n")[2].strip())


def test_the_exports_of_the_checkpoint_go_to_the_runs_artifacts(
    registered_original: Path, registry: dict[str, Any]
) -> None:
    folder = run_of(registered_original, "pictures") / "export"
    kept = registry["flowers"]["versions"]["1"]["artifacts"]
    listed = {*read_json(folder / "export.json")["artefacts"]}
    assert listed
    assert {f"export/flowers-1/{name}" for name in [*listed, "export.json"]} <= {*kept}


def test_a_training_that_mlflow_did_not_record_gets_a_run(
    registered_original: Path, registry: dict[str, Any]
) -> None:
    version = registry["flowers"]["versions"]["1"]
    assert version["run_name"] == run_of(registered_original, "pictures").name
    assert version["run_status"] == "FINISHED"
    assert version["run_metrics"]["val/loss"] > 0


def test_a_version_belongs_to_the_mlflow_run_of_its_training(
    registered_original: Path, registry: dict[str, Any]
) -> None:
    version = registry["net"]["versions"]["1"]
    assert (
        version["run_id"]
        == read_json(run_of(registered_original, "small") / "mlflow.json")["run_id"]
    )
    assert version["run_ended"] < version["created"], "the training's end is not moved"


def test_a_registered_classifier_takes_images_and_predicts_what_its_run_does_without_lightkit(
    registered: Workspace,
) -> None:
    pictures = sorted((registered.folder / "pictures").glob("*/*.png"))[:6]
    run = run_of(registered.folder, "pictures")
    words = ("predict", "--run", str(run), "--output", "rows.jsonl", "--top-k", "1")
    registered.run(*words, *map(str, pictures)).ok()
    rows = [
        json.loads(line)
        for line in (registered.folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    np.save(
        registered.folder / "images.npy",
        np.stack([np.asarray(Image.open(path)) for path in pictures]),
    )
    code = (
        "import mlflow, numpy\n"
        f"mlflow.set_tracking_uri({tracking_uri(registered)!r})\n"
        "model = mlflow.pyfunc.load_model('models:/flowers@champion')\n"
        "images = numpy.load('images.npy')\n"
        "numpy.save('answers.npy', model.predict(images))\n"
        "assert model.predict(images[:1, :20, :30]).shape == (1, 2)\n"
    )
    registered.write("load.py", WITHOUT_LIGHTKIT + code)
    registered.run(script="load.py").ok()
    answers = np.load(registered.folder / "answers.npy")
    assert [("blues", "reds")[best] for best in answers.argmax(1)] == [row["label"] for row in rows]
    assert answers.max(1) == pytest.approx([row["probability"] for row in rows], abs=1e-5)


def test_a_registered_model_asks_for_torch_and_numpy_alone(registered_original: Path) -> None:
    files = [  # of the versions, not of the pickled model that the run has logged
        path
        for path in registered_original.glob("runs/mlflow-artifacts/**/requirements.txt")
        if not [*path.parent.rglob("*.pkl"), *path.parent.rglob("*.pth")]
    ]
    assert files
    asked = {
        re.split(r"[=<>~\[]", line)[0]
        for file in files
        for line in file.read_text(encoding="utf-8").split()
    }
    assert asked <= {"mlflow", "torch", "numpy"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), r"--run latest"),
        (("--run", "latest"), r"--name"),
        (("--run", "latest", "--name", "a/b"), r"--name.*a/b.*slash"),
        (("--run", "latest", "--name", "a", "--alias", "v1"), r"--alias.*'v1'.*MLflow"),
        (
            ("--run", "latest", "--name", "a", "--format", "onnx"),
            r"--format.*torch_export or torchscript",
        ),
        (("--run", "latest", "--name", "a"), r"no run 'latest'"),
    ],
    ids=["no run", "no name", "name", "alias", "format", "no runs"],
)
def test_what_mlflow_would_refuse_is_reported_before_anything_is_built(
    workspace: Workspace, words: tuple[str, ...], says: str
) -> None:
    result = workspace.run("register", *words)
    assert result.code == 2
    assert re.search(says, result.err)
    assert not (workspace.folder / "runs").exists()


@pytest.mark.parametrize(
    ("flag", "config", "variable", "origin"),
    [
        (AWAY, "http://127.0.0.1:1", "http://127.0.0.1:2", r"127\.0\.0\.1:9 .*--tracking-uri"),
        (None, AWAY, "http://127.0.0.1:2", r"127\.0\.0\.1:9 .*config"),
        (None, None, AWAY, r"127\.0\.0\.1:9 .*MLFLOW_TRACKING_URI"),
    ],
    ids=["flag", "config", "variable"],
)
def test_the_address_of_mlflow_is_looked_for_in_order_and_one_that_does_not_answer_is_75(
    finished: Workspace, flag: str | None, config: str | None, variable: str | None, origin: str
) -> None:
    words = ["--run", "latest", "--name", "net"] + ([f"--tracking-uri={flag}"] if flag else [])
    if config:
        path = finished.only_run / "config.yaml"
        logger = (
            "logger: {mlflow: {class_path: lightkit.loggers.MLflow, init_args: {tracking_uri:"
            f" '{config}'}}}}}}"
        )
        lines = [
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if not line.startswith("logger:")
        ]
        path.write_text("\n".join([*lines, logger, ""]), encoding="utf-8")
    result = finished.run("register", *words, environ={"MLFLOW_TRACKING_URI": variable})
    assert result.code == 75, result.err
    assert re.search(origin, result.err)
    assert "sesame" not in result.out + result.err
    assert "Traceback" not in result.err


def test_a_logged_model_is_exported_and_gives_the_same_answers(registered: Workspace) -> None:
    words = ("--run", "models:/net@tried", "--format", "torchscript", "--output", "out")
    registered.run("export", *words, timeout_s=400).ok()
    x = torch.randn(5, 3)
    loaded = torch.jit.load(registered.folder / "out" / "model.ts")  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loaded(x), answers_of_net(run_of(registered.folder, "small"), x))


@pytest.mark.long
def test_a_registered_classifier_is_exported_as_its_run_is(registered: Workspace) -> None:
    words = ("--run", "models:/flowers@champion", "--format", "onnx", "--output", "out")
    registered.run("export", *words, timeout_s=400).ok()
    import onnxruntime  # late: tests of other formats need it not

    run = run_of(registered.folder, "pictures")
    registered.run(
        "export", "--run", str(run), "--format=onnx", "--with-preprocessing", "--output=own"
    ).ok()
    pictures = np.random.default_rng(7).integers(0, 256, (3, 40, 50, 3), np.uint8)
    answers, classes = [], []
    for folder in (registered.folder / "own", registered.folder / "out"):
        session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
        )
        answers.append(session.run(None, {session.get_inputs()[0].name: pictures})[0])
        classes.append(
            json.loads(session.get_modelmeta().custom_metadata_map["lightkit"])["class_names"]
        )
    assert classes[0] == classes[1]
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-4, atol=1e-5)


LOG_PICKLED = """\
import sys

import mlflow
import numpy
import torch

mlflow.set_tracking_uri(sys.argv[1])
mlflow.create_experiment("article", artifact_location=sys.argv[2])
mlflow.set_experiment("article")
torch.manual_seed(5)
module = torch.nn.Linear(3, 1)
with mlflow.start_run():
    mlflow.pytorch.log_model(
        module, name="model", registered_model_name="article", serialization_format="pickle",
        input_example=numpy.ones((2, 3), numpy.float32), pip_requirements=["torch"],
    )
"""


def test_a_pickled_module_is_loaded_only_with_trust(registered: Workspace) -> None:
    registered.write("log_pickled.py", LOG_PICKLED)
    registered.run(
        tracking_uri(registered), str(registered.folder / "article"), script="log_pickled.py"
    ).ok()
    result = registered.run("export", "--run", "models:/article/1", "--format", "torchscript")
    assert result.code == 2
    assert re.search(r"pickled.*--trust", result.err)


@pytest.mark.long
def test_a_pickled_module_is_exported_with_trust(registered: Workspace) -> None:
    registered.write("log_pickled.py", LOG_PICKLED)
    registered.run(
        tracking_uri(registered), str(registered.folder / "article"), script="log_pickled.py"
    ).ok()
    words = ("--run", "models:/article/1", "--format", "torchscript", "--output", "out", "--trust")
    registered.run("export", *words, timeout_s=400).ok()
    torch.manual_seed(5)
    module, x = torch.nn.Linear(3, 1), torch.randn(5, 3)
    loaded = torch.jit.load(registered.folder / "out" / "model.ts")  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loaded(x), module(x))


@pytest.mark.parametrize(
    "words",
    [("-c", "small.yaml"), ("--model.hidden=3",), ("--int8",)],
    ids=lambda words: str(words[0]),
)
def test_what_belongs_to_a_run_is_refused_for_a_logged_model(
    workspace: Workspace, words: tuple[str, ...]
) -> None:
    result = workspace.run("export", "--run", "models:/net@tried", *words)
    assert result.code == 2
    assert words[0].partition("=")[0].lstrip("-") in result.err


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("models:/nothing@best", r"nothing"),
        ("models:/net@nowhere", r"nowhere"),
        ("runs:/", r"models:/NAME@ALIAS"),
    ],
    ids=["model", "alias", "address"],
)
def test_a_logged_model_that_is_not_there_is_reported_in_one_line(
    registered: Workspace, address: str, says: str
) -> None:
    result = registered.run("export", "--run", address)
    assert result.code == 2
    assert re.search(says, result.err)
    assert len(result.err.splitlines()) == 1


def test_to_look_for_a_logged_model_makes_no_database(workspace: Workspace) -> None:
    result = workspace.run("export", "--run", "models:/net@best")
    assert result.code == 2
    assert "MLFLOW_TRACKING_URI" in result.err
    assert not (workspace.folder / "runs").exists()


@pytest.mark.long
def test_mlflow_serves_a_registered_classifier(registered: Workspace) -> None:
    pictures = sorted((registered.folder / "pictures").glob("*/*.png"))[:4]
    run = run_of(registered.folder, "pictures")
    words = ("predict", "--run", str(run), "--output", "rows.jsonl", "--top-k", "1")
    registered.run(*words, *map(str, pictures)).ok()
    rows = [
        json.loads(line)
        for line in (registered.folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    serve = ("models", "serve", "-m", "models:/flowers@champion", "--env-manager", "local")
    environ = {"MLFLOW_TRACKING_URI": tracking_uri(registered)}
    with started(registered.folder, *serve, healthy="/ping", environment=environ) as address:
        status, answer = _post(
            address, [np.asarray(Image.open(path)).tolist() for path in pictures]
        )
        assert status == 200, answer
        assert [("blues", "reds")[int(np.argmax(shares))] for shares in answer["predictions"]] == [
            row["label"] for row in rows
        ]
        for wrong in (
            [[1, 2, 3]],
            np.zeros((1, 4, 4, 4), int).tolist(),
            np.full((1, 4, 4, 3), 300).tolist(),
        ):
            assert _post(address, wrong)[0] == 400


def _post(address: str, images: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{address}/invocations",
        json.dumps({"inputs": images}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.long
def test_a_server_of_mlflow_holds_versions_promotions_and_their_log(planted: Workspace) -> None:
    store = ("--backend-store-uri", f"sqlite:///{planted.folder}/server.db", "--workers", "1")
    files = ("--artifacts-destination", str(planted.folder / "files"))
    with started(planted.folder, "server", *store, *files, healthy="/health") as address:
        better, worse = (str(run) for run in planted.runs)
        where = f"--tracking-uri={address}"
        planted.run("register", "--run", worse, "--name=net", "--alias=none", where).ok()
        planted.run("promote", better, where, "--reason=the first").ok()
        planted.run("promote", worse, where, "--force").ok()
        planted.run("rollback", "net", where).ok()
        registry = read_registry(planted, address)
        assert registry["net"]["aliases"]["champion"] == "2"
        assert (
            registry["net"]["versions"]["1"]["run_id"] != registry["net"]["versions"]["2"]["run_id"]
        )
        history = planted.run("history", "net", where).ok().out
        assert re.findall(r"(\S+) -> (\d)", history) == [("-", "2"), ("2", "1"), ("1", "2")]
