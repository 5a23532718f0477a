#!/usr/bin/env bash
# W&B 0.31.0: a run that is left open in a forked process of multiprocessing loses all of its records, before Python 3.13.
#
# Guess: a run that nobody finishes is finished at the end of the process, as W&B's documentation says, in a process of
# multiprocessing as in a program; offline the records are on the disk in any case.
# Seen, offline, ten values logged and no call of finish: a program, and a Process that is spawned, leave a file of four
# kilobytes with all values. The same function in a Process that is forked, or that a fork server makes, ends with code 0 and
# without a word, and leaves a file of 7 bytes, its head: W&B finishes in an exit function, and before Python 3.13 a forked
# process of multiprocessing calls none. So each trial of a search in such processes is empty. With finish() before the end
# the file is whole. lightkit ends the run of a forked stage by itself.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet wandb==0.31.0

cat > "$folder/record.py" <<'PYTHON'
import multiprocessing
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])


def record(name, finishes):
    import wandb

    folder = FOLDER / name
    folder.mkdir()
    run = wandb.init(project="p", dir=folder, mode="offline", settings={"silent": True})
    for step in range(10):
        run.log({"loss": 1 / (step + 1)})
    if finishes:
        run.finish()


def main():
    if len(sys.argv) > 2:
        record("program", False)
        return
    for method in ("fork", "spawn", "forkserver"):
        for finishes in (False, True):
            name = f"{method}{' and finish' if finishes else ''}"
            context = multiprocessing.get_context(method)
            process = context.Process(target=record, args=(name, finishes))
            process.start()
            process.join()
            assert process.exitcode == 0, (name, process.exitcode)


if __name__ == "__main__":
    main()
PYTHON
mkdir "$folder/runs"
"$folder/venv/bin/python" "$folder/record.py" "$folder/runs" program > /dev/null 2>&1
"$folder/venv/bin/python" "$folder/record.py" "$folder/runs" > /dev/null 2>&1

"$folder/venv/bin/python" - "$folder/runs" <<'PYTHON'
import sys
from pathlib import Path

calls_exit_functions = sys.version_info >= (3, 13)
print(f"Python {sys.version.split()[0]}")
for folder in sorted(Path(sys.argv[1]).iterdir()):
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    size = file.stat().st_size
    has_values = b"loss" in file.read_bytes()
    print(f"{folder.name}: {size} bytes, values {has_values}")
    is_own_program = folder.name == "program" or folder.name.startswith("spawn")
    is_whole = is_own_program or "finish" in folder.name or calls_exit_functions
    assert has_values == is_whole, folder.name
    assert is_whole or size == 7, size
PYTHON
