"""`lightkit serve`: a run's model behind HTTP, with the answers of `lightkit predict`."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.contract.conftest import copy_of
from tests.contract.test_predict import NAMED, NEW, paint
from tests.contract.workspace import ForkServer, Process, Workspace, wait_until_gone
from tests.ports import free_port

pytestmark = pytest.mark.skipif(
    find_spec("litserve") is None, reason="needs the extra lightkit-train[serve]"
)
Answer = dict[str, Any]


@dataclass(frozen=True)
class Server:
    """A server that runs.

    Args:
        workspace: Its working directory.
        process: The process.
        address: Its address.
    """

    workspace: Workspace
    process: Process
    address: str

    def post(self, **request: Any) -> requests.Response:
        """Send a request for predictions."""
        return requests.post(f"{self.address}/predict", timeout=60, **request)

    def predict(self, *names: str) -> list[Answer]:
        """Predict image files by one form."""
        files = [("image", (name, (self.workspace.folder / name).read_bytes())) for name in names]
        response = self.post(files=files)
        assert response.status_code == 200, response.text
        answers: list[Answer] = response.json()["predictions"]
        return answers


def is_healthy(address: str) -> bool:
    """Whether the server answers that it is ready."""
    try:
        return requests.get(f"{address}/health", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False


def start_server(workspace: Workspace, *words: str) -> Server:
    """Start a server, and wait until its model is loaded."""
    port = free_port()
    process = workspace.start("serve", *words, "--port", str(port), cold=True)
    address = f"http://127.0.0.1:{port}"
    process.wait_for(lambda: is_healthy(address))
    return Server(workspace, process, address)


@pytest.fixture(scope="module")
def place(
    exported_original: Path, tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Workspace]:
    """The exported run, with new images beside it."""
    workspace = Workspace(tmp_path_factory.mktemp("serve") / "work", fork_server)
    copy_of(exported_original, workspace)
    paint(workspace.folder / "new", NEW)
    yield workspace
    workspace.close()


@pytest.fixture(scope="module")
def server(place: Workspace) -> Server:
    """A server of that run, with a small limit on requests."""
    return start_server(place, "--run", "latest", "--max-request", "100k")


@pytest.fixture(scope="module")
def predicted(place: Workspace) -> list[dict[str, Any]]:
    """Predictions of `lightkit predict` by the same file."""
    model = "runs/pictures/latest/export/model.onnx"
    place.run("predict", "--model", model, "new", "--output", "rows.jsonl").ok()
    return [json.loads(line) for line in (place.folder / "rows.jsonl").read_text().splitlines()]


def test_answers_are_those_of_predict_to_a_millionth(
    server: Server, predicted: list[dict[str, Any]]
) -> None:
    answers = server.predict(*NAMED)
    assert [answer["name"] for answer in answers] == NAMED
    for answer, row in zip(answers, predicted, strict=True):
        assert answer["label"] == row["label"]
        classes = answer["classes"]
        assert [each["label"] for each in classes] == [row["label"], row["label_2"]]
        assert classes[0]["probability"] == pytest.approx(row["probability"], abs=1e-6)
        assert classes[1]["probability"] == pytest.approx(row["probability_2"], abs=1e-6)


def test_a_picture_may_be_the_body_itself(server: Server) -> None:
    content = (server.workspace.folder / NAMED[0]).read_bytes()
    for content_type in ("image/png", "application/octet-stream"):
        response = server.post(data=content, headers={"Content-Type": content_type})
        assert response.status_code == 200, response.text
        (answer,) = response.json()["predictions"]
        assert answer["classes"] == server.predict(NAMED[0])[0]["classes"]


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        ({"files": [("photo", ("a.png", b"x"))]}, 400, "no field `image` (its fields: photo)"),
        ({"files": [("image", (None, "x"))]}, 400, "the field `image` is text"),
        ({"files": [("image", ("a.png", b""))]}, 400, "a.png is empty"),
        (
            {"files": [("image", ("a.png", b"no picture"))]},
            422,
            "a.png: this picture cannot be decoded (not an image",
        ),
        ({"data": b"", "headers": {"Content-Type": "image/png"}}, 400, "the body is empty"),
        (
            {"data": b"cut", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
            400,
            "the form cannot be read",
        ),
        ({"json": {"rows": [[1.0]]}}, 415, "got application/json; expected a picture"),
        ({}, 415, "got no Content-Type; expected a picture"),
        (
            {"files": [("image", ("a.png", b"0" * 200_000))]},
            413,
            "larger than 0.1 MB; --max-request",
        ),
        (
            {"data": iter([b"0" * 200_000]), "headers": {"Content-Type": "image/png"}},
            413,
            "larger than 0.1 MB",
        ),
    ],
    ids=[
        *("field", "text", "empty", "undecodable", "nothing", "cut", "rows", "no_type"),
        *("large", "large_unannounced"),
    ],
)
def test_a_wrong_request_is_refused_with_the_reason(
    request_: dict[str, Any], status: int, says: str, server: Server
) -> None:
    response = server.post(**request_)
    assert response.status_code == status, response.text
    assert says in response.json()["detail"]


def test_a_broken_picture_fails_no_other_request(
    server: Server, predicted: list[dict[str, Any]]
) -> None:
    with socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2]))) as left:
        left.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length:"
            b" 50\r\n\r\ncut"
        )
    assert server.post(files=[("image", ("a.png", b"no picture"))]).status_code == 422
    assert server.predict(NAMED[0])[0]["label"] == predicted[0]["label"]


def test_a_port_in_use_is_an_error_that_names_port_and_flag(server: Server) -> None:
    port = server.address.rpartition(":")[2]
    refused = server.workspace.run_cold("serve", "--run", "latest", "--port", port)
    assert refused.code == 2
    assert f"--port {port}: nothing can listen at port {port} of 127.0.0.1" in refused.err
    assert "Choose another port with --port" in refused.err
    assert "Traceback" not in refused.err


def test_a_model_that_is_not_what_was_exported_is_refused(place: Workspace) -> None:
    export = place.runs[-1] / "export"
    changed = place.folder / "changed"
    shutil.copytree(export, changed)
    content = bytearray((changed / "model.onnx").read_bytes())
    at = content.rfind(b"float32")
    content[at : at + 7] = b"float64"
    (changed / "model.onnx").write_bytes(content)
    (place.folder / "no.onnx").write_bytes(b"no model")
    words = ("--port", str(free_port()))
    for name in ("changed/model.onnx", "no.onnx"):
        served = place.run_cold("serve", "--model", name, *words)
        predicted = place.run("predict", "--model", name, NAMED[0])
        assert served.code == predicted.code == 3
        assert served.err == predicted.err
    other = place.run_cold("serve", "--model", str(export / "model.pt2"), *words)
    assert other.code == 2
    assert "expected a file that ends in .onnx" in other.err


def test_sigterm_ends_the_server_in_order_with_0(place: Workspace) -> None:
    model = str(place.runs[-1] / "export" / "model.onnx")
    served = start_server(place, "--model", model, "--top-k", "1", "--max-batch-size", "1")
    assert len(served.predict(NAMED[0])[0]["classes"]) == 1
    pid = served.process.pid
    served.process.signal(signal.SIGTERM)
    result = served.process.result(timeout_s=30).ok()
    assert result.out.endswith("ended\n")
    assert "curl -F image=@photo.jpg" in result.out
    assert not result.err
    # Python's own tracker of shared memory ends by itself, once its pipe is closed
    wait_until_gone(pid)


ROWS_MODEL = """
import json

import numpy as np
import onnx
import sys
from onnx import TensorProto, helper, numpy_helper

weight = numpy_helper.from_array(
    np.array([[1.0, 0.0], [0.0, 2.0], [0.5, 0.5]], dtype=np.float32), "w"
)
inputs = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
outputs = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])
node = helper.make_node("MatMul", ["x", "w"], ["y"])
model = helper.make_model(helper.make_graph([node], "g", [inputs], [outputs], [weight]))
model.opset_import[0].version = 18
model.ir_version = 10
spec = {"name": "x", "dtype": "float32", "shape": [None, 3]}
record = {"schema": 1, "format": "onnx", "model": "Linear", "inputs": [spec]}
record["outputs"] = [{"name": "y", "dtype": "float32", "shape": [None, 2]}]
record["output_kind"] = sys.argv[1]
record["class_names"] = ["left", "right"] if sys.argv[1] == "logits" else None
entry = model.metadata_props.add()
entry.key = "lightkit"
entry.value = json.dumps(record)
onnx.save(model, f"{sys.argv[1]}.onnx")
"""


def test_rows_of_numbers_are_answered_with_values_or_classes(place: Workspace) -> None:
    """By hand: (1, 2, 2) times the weights is (2, 5).

    A softmax over both is 1 / (1 + e^3) and its rest.
    """
    place.write("rows_model.py", ROWS_MODEL)
    for kind in ("values", "logits"):
        place.run_cold(kind, script="rows_model.py").ok()
    served = start_server(place, "--model", "values.onnx")
    response = served.post(json={"rows": [[1, 2, 2], [0.5, 0, 0]]})
    assert response.json() == {
        "predictions": [{"name": "0", "values": [2, 5]}, {"name": "1", "values": [0.5, 0]}]
    }
    for rows, says in (
        ([[1, 2]], "rows[0]: expected a list of 3 numbers, got 2 numbers"),
        ([[1, 2, 3], [1, "a", 3]], 'rows[1][1]: expected a finite number, got "a"'),
        ([[1, 2, 10**400]], "rows[0][2]: expected a finite number, got 1000"),
        ([[1, 1e39, 3]], "rows[0][1]: expected a number from -3.40282e+38 to 3.40282e+38, got"),
        (5, "there are no rows"),
    ):
        refused = served.post(json={"rows": rows})
        assert 400 <= refused.status_code < 500
        assert says in refused.json()["detail"]
    served.process.signal(signal.SIGTERM)
    served.process.result(timeout_s=30).ok()
    served = start_server(place, "--model", "logits.onnx")
    (answer,) = served.post(json={"rows": [[1, 2, 2]]}).json()["predictions"]
    assert answer["label"] == "right"
    assert answer["probability"] == pytest.approx(1 - 1 / (1 + 2.718281828459045**3), abs=1e-6)


def test_a_registered_model_is_exported_and_served(
    registered: Workspace, predicted: list[dict[str, Any]]
) -> None:
    paint(registered.folder / "new", NEW)
    served = start_server(registered, "--model", "models:/flowers@champion")
    assert "model.onnx" in served.process.out, "it was verified"
    for answer, row in zip(served.predict(*NAMED), predicted, strict=True):
        assert answer["label"] == row["label"]
        assert answer["probability"] == pytest.approx(
            row["probability"], abs=1e-5
        )  # of another graph of the same model
    served.process.signal(signal.SIGTERM)
    served.process.result(timeout_s=30).ok()
