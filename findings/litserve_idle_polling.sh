#!/usr/bin/env bash
# LitServe 0.2.19: a server with batches and without any request takes a good part of a core.
#
# With max_batch_size above 1, the loop of a worker collects each batch for batch_timeout from the moment at which it
# begins to wait, not from the first request, and asks its queue at least each millisecond. The queue is in the process
# of a manager, so that each question is a message there and back. No setting of LitServer or LitAPI changes that; a loop
# of one's own does, which waits for the first request and only then collects: LitAPI(loop=...) takes an instance of a
# subclass of litserve.loops.BatchedLoop. lightkit serve has one.
#
# Seen with Python 3.11.7 on Linux, two cores: "as it is: 0.16 of a core" and "waits for the first: 0.00 of a
# core". The script ends with 1 as soon as a version takes less than 3 % of a core by itself.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet litserve==0.2.19 requests==2.34.2 psutil==7.2.2

cat > "$folder/serve.py" <<'PYTHON'
import signal
import socket
import subprocess
import sys
import time
from queue import Empty

import litserve
import psutil
import requests
from litserve.loops import BatchedLoop

SECONDS = 10


class WithFirst:
    def __init__(self, first, queue):
        self.taken = [first]
        self.queue = queue

    def get(self, timeout):
        return self.taken.pop() if self.taken else self.queue.get(timeout=timeout)


class Patient(BatchedLoop):
    def get_batch_requests(self, lit_api, request_queue, transport):
        try:
            first = request_queue.get(timeout=1)
        except Empty:
            return [], []
        return super().get_batch_requests(lit_api, WithFirst(first, request_queue), transport)


class Echo(litserve.LitAPI):
    def decode_request(self, request):
        return request["value"]

    def batch(self, inputs):
        return inputs

    def predict(self, x):
        return x

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return {"value": output}


def used_s(server):
    family = [server, *server.children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in family)


def measure(loop):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, __file__, str(port), loop])
    address = f"http://127.0.0.1:{port}"
    try:
        while True:
            assert process.poll() is None
            try:
                if requests.get(f"{address}/health", timeout=5).status_code == 200:
                    break
            except requests.ConnectionError:
                time.sleep(0.2)
        assert requests.post(f"{address}/predict", json={"value": 5}, timeout=60).json() == {"value": 5}
        server = psutil.Process(process.pid)
        before_s = used_s(server)
        time.sleep(SECONDS)
        return (used_s(server) - before_s) / SECONDS
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


if __name__ == "__main__" and sys.argv[1:]:
    loop = Patient() if sys.argv[2] == "patient" else "auto"
    api = Echo(max_batch_size=4, batch_timeout=0.002, loop=loop)
    litserve.LitServer(api, accelerator="cpu").run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error"
    )
elif __name__ == "__main__":
    plain = measure("auto")
    patient = measure("patient")
    print(f"as it is: {plain:.2f} of a core")
    print(f"waits for the first: {patient:.2f} of a core")
    assert patient < plain / 3
    assert plain > 0.03, "LitServe waits without polling now"
PYTHON

"$folder/venv/bin/python" "$folder/serve.py"
