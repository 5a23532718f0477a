"""The inputs of a fit with their digests: its config, its data and its code. No torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lightkit import runs
from lightkit.cli.class_sources import list_default_texts
from lightkit.cli.input_files import compute_code_digests, compute_data_digests
from lightkit.cli.stage_config import StageConfig
from lightkit.config import Resolved
from lightkit.config.display import Written
from lightkit.config.identity import is_in_earlier_identity, is_in_identity, select_identity
from lightkit.config.schema import ClassDescription, load_schema
from lightkit.config.sections import USER_SECTIONS
from lightkit.config.validation import find_section_class
from lightkit.errors import DataError
from lightkit.images.flower_photos import flower_photos
from lightkit.registry.promotion import digests_of_inputs
from lightkit.runs import Inputs, Run

_LIBRARIES = ("lightkit", "lightning", "pytorch_lightning", "torch", "torchvision")
_ADDRESS = re.compile(r"(?!file:)[A-Za-z][\w+.-]*://")


def compute_inputs(stage_config: StageConfig, *, salt: str, asked: bool) -> Inputs:
    """Compute the digests of a fit's config, data and code. Unchanged files are not read again.

    Args:
        stage_config: Config of the fit.
        salt: Salt of the digests of values that must not be seen.
        asked: Whether ``--if-changed`` asks for it; else data of more than 1 GB or 20,000 files are
            left out.

    Raises:
        DataError: If LIGHTKIT_DATA names a folder without the photos that it should hold.
    """
    texts = _list_data_texts(stage_config.resolved, stage_config.ckpt_path)
    config, hidden = split_values(stage_config.written, salt)
    code = compute_code_digests(stage_config.run_root, _list_class_paths(stage_config.resolved))
    data, size_bytes = compute_data_digests(texts, stage_config.run_root, asked=asked)
    return Inputs(
        config,
        hidden,
        data=data,
        unseen=_list_unseen(texts, stage_config.resolved),
        code=code,
        size_bytes=size_bytes,
        salt=salt,
    )


def digest_inputs_of_scores(stage_config: StageConfig, run: Run) -> dict[str, str]:
    """Return the digests of the config, the data and the code by which a run is scored.

    Without its checkpoint.

    Args:
        stage_config: The command on the run.
        run: The run, whose id is the salt of values that must not be seen.

    Returns:
        Empty where one of them cannot be seen, or is too large to be read, so that nothing can be
        compared.
    """
    try:
        inputs = compute_inputs(replace(stage_config, ckpt_path=None), salt=run.id, asked=False)
    except DataError:  # the photos are gone
        return {}
    return (
        digests_of_inputs({"inputs": inputs.digests})
        if sees_data(stage_config.resolved, inputs)
        else {}
    )


def record_inputs(
    stage_config: StageConfig, run: Run, previous: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Write ``inputs.json``, and return its entry in the manifest.

    A run that is resumed with other inputs than it began with has no record: its model is made from
    both.

    Args:
        stage_config: The invocation.
        run: Its run.
        previous: The run's manifest, if it is resumed.
    """
    if stage_config.inputs_now is None:
        inputs = compute_inputs(
            stage_config, salt=run.id, asked="if-changed" in stage_config.options
        )
    else:
        hidden = split_values(stage_config.written, run.id)[1]
        inputs = replace(stage_config.inputs_now, salt=run.id, hidden=hidden)
    if previous is not None:
        before = runs.read_inputs(run.folder)
        if before is None or select_identity_of(before).digests != inputs.digests:
            (run.folder / runs.INPUTS).unlink(missing_ok=True)
            return None
    inputs.write(run.folder)
    return {**inputs.digests, "earlier_config": _digest_earlier(stage_config.written, inputs)}


def select_identity_of(inputs: Inputs) -> Inputs:
    """Return inputs without what a run of an earlier version has noted beyond the identity."""
    config = select_identity(inputs.config)
    hidden = {
        key: digest for key, digest in inputs.hidden.items() if is_in_identity(key, inputs.config)
    }
    return replace(inputs, config=config, hidden=hidden)


def split_values(
    written: Written,
    salt: str,
    counts: Callable[[str, Mapping[str, Any]], bool] = is_in_identity,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the identity's values as written, without secrets.

    With salted digests of the secret ones, by dotted key.

    Args:
        written: The values of a config.
        salt: Salt of the digests.
        counts: Whether a dotted key is in the identity, by all values.
    """
    values = written.values
    shown = {
        key: value for key, value in values.items() if key != "ckpt_path" and counts(key, values)
    }
    hidden = {
        key: hashlib.sha256(json.dumps([salt, text]).encode()).hexdigest()[:32]
        for key, text in written.secrets.items()
        if key in shown
    }
    if written.ckpt_path is not None:  # an option names it, too
        shown["ckpt_path"] = written.ckpt_path
    return shown, hidden


def sees_data(resolved: Resolved, now: Inputs) -> bool:
    """Return whether all that the data module reads is compared."""
    is_named = _find_lightkit_class(resolved) is not None or any(
        key.startswith("data") for key in now.data or {}
    )
    return is_named or not resolved.value_of("data")


def _digest_earlier(written: Written, inputs: Inputs) -> str:
    """Return the digest of the config by the list of earlier versions.

    Models were rolled back by it.
    """
    config, hidden = split_values(written, inputs.salt, is_in_earlier_identity)
    digest: str = replace(inputs, config=config, hidden=hidden).digests["config"]
    return digest


def _list_class_paths(resolved: Resolved) -> list[str]:
    """List the paths of the classes that a config names.

    Without those of lightkit, Lightning and torch.
    """
    found = [resolved.class_named(section) for section in USER_SECTIONS]
    found += _list_named_classes(resolved.values)
    trainer = resolved.section("trainer")
    for key in ("callbacks", "logger", "plugins"):  # of which a class without arguments may be text
        listed = trainer.get(key)
        found += (
            [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
        )
    given = dict.fromkeys(map(str, found))
    return [path for path in given if "." in path and path.partition(".")[0] not in _LIBRARIES]


def _list_named_classes(value: Any) -> Iterator[str]:
    """List the values of each ``class_path``."""
    if isinstance(value, Mapping):
        named = value.get("class_path")
        if isinstance(named, str):
            yield named
        for child in value.values():
            yield from _list_named_classes(child)
    elif isinstance(value, (list, tuple)):
        for child in value:
            yield from _list_named_classes(child)


def _list_unseen(texts: Mapping[str, str], resolved: Resolved) -> tuple[str, ...]:
    """List the keys of addresses whose content is not compared.

    lightkit's own classes use those of http in `fetch`.
    """
    is_own = _find_lightkit_class(resolved) is not None
    addresses = [key for key, text in texts.items() if _ADDRESS.match(text)]
    return tuple(key for key in addresses if not (is_own and texts[key].startswith("http")))


def _find_lightkit_class(resolved: Resolved) -> ClassDescription | None:
    """Return the description of the data module's class if it is one of lightkit's."""
    found = find_section_class("data", resolved, load_schema())
    return found if found is not None and found.path.startswith("lightkit.") else None


def _list_data_texts(resolved: Resolved, ckpt_path: str | None) -> dict[str, str]:
    """List the texts that may name data by their dotted keys.

    With the defaults of the data module's arguments.
    """
    data = resolved.value_of("data")
    described = _find_lightkit_class(resolved)
    texts = dict(_list_texts("ckpt_path", ckpt_path))
    if described is not None:
        texts |= _list_texts("data.init_args", described.defaults)
    elif (own := resolved.class_named("data")) is not None:
        arguments = resolved.section("data").get("init_args") or {}
        defaults = {
            name: text for name, text in list_default_texts(own).items() if name not in arguments
        }
        texts |= _list_texts("data.init_args", defaults)
    texts |= _list_texts("data", data)
    is_flowers = described is not None and described.path == "lightkit.data.Flowers"
    if is_flowers and "data.init_args.root" not in texts:
        texts["data.init_args.root"] = str(flower_photos() or "")
    return texts


def _list_texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, (Mapping, list, tuple)):
        for name, child in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _list_texts(f"{key}.{name}", child)
