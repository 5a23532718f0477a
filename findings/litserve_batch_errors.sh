#!/usr/bin/env bash
# LitServe 0.2.19: a request that decode_request refuses with an HTTPException fails the others of its batch, too.
#
# With max_batch_size above 1, the exception that decode_request or encode_response raises for one request is the answer
# to every request that was collected with it: a client whose own request is right gets the status 422, and the reason,
# of another client's. Without batches each request has its own answer. lightkit therefore decodes to a value that says
# why there is none, and answers it with a response of its own.
#
# Seen with Python 3.11.7 on Linux: "alone: 200" and "with a wrong one: 422 it is wrong". The script ends with 1 as soon as
# a version answers the right request.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet litserve==0.2.19 requests==2.34.2

cat > "$folder/serve.py" <<'PYTHON'
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import litserve
import requests
from fastapi import HTTPException


class Echo(litserve.LitAPI):
    def decode_request(self, request):
        if request["value"] == "wrong":
            raise HTTPException(422, "it is wrong")
        return request["value"]

    def batch(self, inputs):
        return inputs

    def predict(self, x):
        return x

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return {"value": output}


def post(port, value):
    return requests.post(f"http://127.0.0.1:{port}/predict", json={"value": value}, timeout=60)


def is_ready(port):
    try:
        return requests.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False


if __name__ == "__main__" and sys.argv[1:]:
    api = Echo(max_batch_size=2, batch_timeout=5.0)
    litserve.LitServer(api, accelerator="cpu").run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error"
    )
elif __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, __file__, str(port)])
    try:
        while not is_ready(port):
            assert server.poll() is None
            time.sleep(0.2)
        alone = post(port, "right")
        with ThreadPoolExecutor(2) as pool:
            right, wrong = pool.map(lambda value: post(port, value), ["right", "wrong"])
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
    print("alone:", alone.status_code)
    print("with a wrong one:", right.status_code, right.json().get("detail", ""))
    assert alone.status_code == 200
    assert wrong.status_code == 422
    assert right.status_code == 422, "LitServe answers the right request now"
PYTHON

"$folder/venv/bin/python" "$folder/serve.py"
