#!/usr/bin/env bash
# tensorboard 2.21.0: EventAccumulator, by which scripts read TensorBoard's files, returns ten of a thousand values or
# all of them, by the package that wrote the file, and a minimum over them is not the run's.
#
# Guess: it returns each value that was written.
# Seen for 1,000 steps of a loss that has one good step: written by TensorBoard's own `tensorboard.summary.Writer`, in the
# form that TensorFlow 2 and Keras write too, `Scalars("loss")` is a KeyError, and `Tensors("loss")` has ten points, the
# last and nine that a generator chose, without a warning. The least of the ten is 0.50, at the last step, where the run
# had 0.01. As a plain scalar, the form of torch's SummaryWriter, all 1,000 are there; of 20,000 there are 10,000, and the
# good step is again not among them. The generator has a fixed seed, so that a second reader loses the same points and a
# repetition shows nothing. `size_guidance={"scalars": 0, "tensors": 0}` keeps all. lightkit reads no such file: its curves
# and reports are made from metrics.csv.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tensorboard==2.21.0 numpy==2.4.6

cat > "$folder/points.py" <<'PYTHON'
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary import Writer
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util import tensor_util

BEST = 500


def compute_loss(step, steps):
    return 0.01 if step == BEST else 1 - 0.5 * step / steps


def write_new(folder, steps):
    writer = Writer(folder)
    for step in range(steps):
        writer.add_scalar("loss", compute_loss(step, steps), step=step)
    writer.close()


def write_plain(folder, steps):
    """As torch's SummaryWriter does."""
    writer = EventFileWriter(folder)
    for step in range(steps):
        value = Summary.Value(tag="loss", simple_value=compute_loss(step, steps))
        writer.add_event(Event(step=step, summary=Summary(value=[value])))
    writer.close()


def read(folder, **sizes):
    events = EventAccumulator(folder, **sizes)
    events.Reload()
    if "loss" in events.Tags()["scalars"]:
        return {event.step: event.value for event in events.Scalars("loss")}
    return {event.step: tensor_util.make_ndarray(event.tensor_proto).item() for event in events.Tensors("loss")}


write_new("new", 1000)
write_plain("plain", 1000)
write_plain("long", 20_000)
found = {folder: read(folder) for folder in ("new", "plain", "long")}
for folder, values in found.items():
    print(f"{folder}: {len(values)} points, the least is {min(values.values()):.2f}")
assert len(found["new"]) == 10 and 999 in found["new"]
assert len(found["plain"]) == 1000 and len(found["long"]) == 10_000
assert min(found["new"].values()) > 0.4
assert round(min(found["plain"].values()), 2) == 0.01
assert BEST not in found["new"] and BEST not in found["long"]
assert read("new") == found["new"]
whole = {folder: read(folder, size_guidance={"scalars": 0, "tensors": 0}) for folder in found}
assert {folder: len(values) for folder, values in whole.items()} == {"new": 1000, "plain": 1000, "long": 20_000}
print(f"steps of the ten: {sorted(found['new'])}")
PYTHON

cd "$folder"
"$folder/venv/bin/python" "$folder/points.py"
