"""The JSON Schema of the keys for hardware, which `lightkit.config.accelerator` reads by rules of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightkit.config.accelerator.said import BLOCK_KEYS, OLD_TRAINER_KEYS
from lightkit.config.accelerator.words import KINDS, OLD_STRATEGIES, PRECISIONS, XLA_STRATEGIES, why_gone

__all__ = ["accelerator_schema", "trainer_hardware"]

Schema = dict[str, Any]

_COUNT = {"type": ["integer", "string", "array", "null"], "items": {"type": ["integer", "string"]}}
_NUMBER = {"type": ["integer", "string", "null"]}
_SWITCH = {"type": ["boolean", "string", "null"]}
_STRATEGIES = ("auto", "ddp", "ddp_spawn", "fsdp", "deepspeed", "horovod", *XLA_STRATEGIES, *OLD_STRATEGIES)
_STRATEGY = {"anyOf": [{"enum": list(_STRATEGIES)}, {"type": ["string", "object", "null"]}]}
_PRECISION = {"anyOf": [{"enum": list(PRECISIONS)}, {"type": ["integer", "string", "null"]}]}
_PRECISION_OR_AUTO = {"anyOf": [{"enum": ["auto", *PRECISIONS]}, {"type": ["integer", "string", "null"]}]}
_REFERENCE = {"$ref": "#/$defs/reference"}
_DIGITS = {"type": "string", "pattern": r"^[-+]?\.?[0-9][0-9_.eE+-]*$"}
_SWITCH_OR_AUTO = {"anyOf": [{"type": ["boolean", "null"]}, {"enum": ["auto", "true", "false"]}, _REFERENCE]}
_COUNT_OR_AUTO = {"anyOf": [{"type": ["integer", "null"]}, {"enum": ["auto"]}, _DIGITS, _REFERENCE]}
_RATE_OR_AUTO = {"anyOf": [{"type": ["number", "null"]}, {"enum": ["auto"]}, _DIGITS, _REFERENCE]}
_FORMAT = {"anyOf": [{"enum": ["auto", "contiguous", "channels_last", None]}, _REFERENCE]}
_KIND = {"anyOf": [{"enum": list(KINDS)}, {"type": ["string", "null"]}]}
_KEYS: dict[str, tuple[Schema, str]] = {
    "kind": (_KIND, "Kind of device; accelerator: cpu is short for it"),
    "gpus": (_COUNT, "Number of GPUs, their numbers as in [0, 3], or -1 for all; 0 is the CPU"),
    "tpu_cores": (_COUNT, "Number of TPU cores, [5] for that one, or all"),
    "ipus": ({**_COUNT, "deprecated": True}, f"Refused unless 0: {why_gone('ipu')}"),
    "hpus": ({**_COUNT, "deprecated": True}, f"Refused unless 0: {why_gone('hpu')}"),
    "num_processes": (_NUMBER, "Number of processes on CPUs, with ddp unless a strategy is given"),
    "strategy": (_STRATEGY, "How processes train together: ddp, fsdp, horovod, ..., or a class"),
    "num_nodes": (_NUMBER, "Number of machines"),
    "precision": (_PRECISION_OR_AUTO, "Numbers to compute in, such as bf16-mixed; auto: the fastest of those measured"),
    "memory_format": (_FORMAT, "Of weights and images; auto: the faster one"),
    "compile": (_SWITCH_OR_AUTO, "Whether the model's layers go through torch.compile; auto: if that is faster"),
    "tf32": (_SWITCH_OR_AUTO, "Whether CUDA rounds float32 to TensorFloat-32 in matrix products; auto: if faster"),
    "fused": (_SWITCH_OR_AUTO, "Whether the optimizer updates all parameters in one kernel; auto: if faster"),
    "threads": (
        _COUNT_OR_AUTO,
        "Threads of each process; auto: as many as are fastest, and fit the cores beside workers and ranks",
    ),
    "num_workers": (_COUNT_OR_AUTO, "Processes that load the data; auto: as many as training waits for, if they fit"),
    "batch_size": (
        _COUNT_OR_AUTO,
        "Samples of a batch; auto: the least that fits into memory and is within 5 % of the best rate",
    ),
    "learning_rate": (
        _RATE_OR_AUTO,
        "Of the optimizer or the model; auto: a tenth of where the loss of a range test is least",
    ),
    "scale_lr": (_SWITCH, "Multiply the learning rate by the number of ranks"),
    "warmup_epochs": (
        {"type": ["integer", "number", "string", "null"]},
        "Epochs in which the scaled learning rate is reached",
    ),
}


def accelerator_schema() -> Schema:
    """Give the schema of the block ``accelerator``, which may be one word."""
    properties = {key: _described(key) for key in BLOCK_KEYS}
    block = {"type": ["object", "null"], "properties": properties, "additionalProperties": False}
    words = {"enum": list(KINDS)}
    reference = {"$ref": "#/$defs/reference"}
    return {"anyOf": [words, block, reference], "description": "The hardware: cpu, gpu, or a mapping such as {gpus: 2}"}


def trainer_hardware(arguments: Mapping[str, Any]) -> dict[str, Schema]:
    """Give the schemas of the trainer's keys for hardware, with those of Lightning 1.x."""
    old = {key: {**_described(key), "deprecated": True} for key in OLD_TRAINER_KEYS}
    types: dict[str, Schema] = {
        "accelerator": {"anyOf": [{"enum": list(KINDS)}, {"type": ["string", "object", "null"]}]},
        "devices": _COUNT,
        "num_nodes": _NUMBER,
        "strategy": _STRATEGY,
        "precision": _PRECISION,
    }
    return {**old, **{key: {**schema, "description": arguments[key]["says"]} for key, schema in types.items()}}


def _described(key: str) -> Schema:
    schema, says = _KEYS[key]
    return {**schema, "description": says}
