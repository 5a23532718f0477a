"""The config's optimizer and schedule.

What the model makes of them, and warnings where that is nothing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jsonargparse._typehints import resolve_class_path_by_name
from pytorch_lightning import LightningModule
from pytorch_lightning.cli import instantiate_class
from pytorch_lightning.utilities import rank_zero_warn
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch.optim.lr_scheduler import LRScheduler

from lightkit.callbacks.optimizer_settings import CountedSchedule, copy_settings
from lightkit.cli.argument_lookup import find_description
from lightkit.config import Resolved, error_at
from lightkit.config.schedule import PLATEAU, SECTION, Schedule, find_long_schedules
from lightkit.errors import ConfigError, LightkitError
from lightkit.models.module import ScoredModule

_log = logging.getLogger("lightkit")


def describe_schedule_class(name: str) -> tuple[Collection[str], bool]:
    """Return the arguments of a schedule's class, and whether it goes by a metric.

    None of an unknown class.
    """
    try:
        path = name if "." in name else resolve_class_path_by_name(LRScheduler, name)
        described = find_description(path)
    except (ConfigError, ValueError):  # jsonargparse reports it
        return (), False
    if described is None:
        return (), False
    return described.arguments, PLATEAU in (described.path, *described.bases)


def keeps_own_optimizer(cls: Any) -> bool:
    """Check whether a model is lightkit's own and trains with the optimizer of `ScoredModule`."""
    return getattr(cls, "configure_optimizers", None) is ScoredModule.configure_optimizers


def warn_of_schedule(resolved: Resolved, cls: type | None, *, is_script: bool) -> None:
    """Warn of what has no effect, or not the one that is meant, each with its place and once.

    Args:
        resolved: The config.
        cls: Class of the model; None where it is not known, or the config's optimizer is not the
            model's.
        is_script: Whether Lightning warns of an optimizer of the config itself.
    """
    notices = [
        error_at(text, resolved.origin_of(path)) for text, path in find_long_schedules(resolved)
    ]
    overrides = is_overridden("configure_optimizers", cls, LightningModule)  # no class, nothing
    if cls is not None and overrides and not keeps_own_optimizer(cls):
        has_optimizer = resolved.value_of("optimizer") is not None
        if resolved.value_of(SECTION) is not None and not has_optimizer:
            text = (
                f"{SECTION} has no effect: {cls.__name__} builds its own in configure_optimizers,"
                " and the config "
            )
            text += (
                "names no optimizer. Name one under optimizer, or set the schedule in the module"
            )
            notices.append(error_at(text, resolved.origin_of((SECTION, "class_path"))))
        elif has_optimizer and not is_script:
            text = (
                f"optimizer replaces what {cls.__name__} builds in configure_optimizers, its"
                " schedule included"
            )
            notices.append(error_at(text, resolved.origin_of(("optimizer", "class_path"))))
    for text in dict.fromkeys(map(str, notices)):
        _log.warning(text)


def warn_of_two_command_lines(args: Any) -> None:
    """Warn, as LightningCLI does, of arguments of a script beside those of its command line."""
    if len(sys.argv) == 1:
        return
    rank_zero_warn(
        "LightningCLI's args parameter is intended to run from within Python like if it were from"
        " the command line. To prevent mistakes it is not recommended to provide both args and"
        f" command line arguments, got: sys.argv[1:]={sys.argv[1:]}, args={args}."
    )


@contextmanager
def explain_building(resolved: Resolved | None) -> Iterator[None]:
    """Turn what a torch optimizer or schedule refuses into an error with the place of its class.

    Raises:
        ConfigError: In the place of a ValueError or TypeError of torch; a class of one's own
            crashes as it does.
    """
    try:
        yield
    except LightkitError:
        raise
    except (TypeError, ValueError, KeyError) as error:
        frame = error.__traceback__
        owners = []
        while frame is not None:
            owners.append(frame.tb_frame)
            frame = frame.tb_next
        is_of_torch = str(owners[-1].f_globals.get("__name__")).startswith(
            ("torch.", "pytorch_lightning.")
        )
        if resolved is None or not is_of_torch:
            raise
        of_schedule = any("lr_scheduler" in str(each.f_globals.get("__name__")) for each in owners)
        of_schedule = of_schedule or (isinstance(error, TypeError) and "LR" in str(error))
        section = SECTION if of_schedule else "optimizer"
        text = f"{section}: {' '.join(resolved.masked(str(error)).split())}"
        raise error_at(text, resolved.origin_of((section, "class_path"))) from error


def with_schedule(found: Any, schedule: Schedule) -> Any:
    """Add when a schedule is stepped to what `configure_optimizers` has returned."""
    if not schedule.keys:
        return found
    if isinstance(found, dict) and "lr_scheduler" in found:
        return {**found, "lr_scheduler": {**_as_mapping(found["lr_scheduler"]), **schedule.keys}}
    if isinstance(found, (list, tuple)) and len(found) == 2 and isinstance(found[1], list):
        return found[0], [{**_as_mapping(each), **schedule.keys} for each in found[1]]
    return found


def count_schedule(
    found: Any, names: Collection[str], init: Mapping[str, Any]
) -> CountedSchedule | None:
    """Prepare a schedule to be built again with its number of steps; None where there is none.

    Args:
        found: What `configure_optimizers` has returned, with the schedule that has a placeholder
            for the number.
        names: Arguments that are `auto`.
        init: Class and arguments of the schedule.
    """
    schedule = None
    if isinstance(found, dict):
        schedule = _as_mapping(found.get("lr_scheduler"))["scheduler"]
    elif isinstance(found, (list, tuple)) and len(found) == 2 and found[1]:
        schedule = _as_mapping(found[1][0])["scheduler"]
    if schedule is None:
        return None
    settings = copy_settings(schedule.optimizer)
    for group in settings.param_groups:  # as before the schedule has begun
        group["lr"] = group.pop("initial_lr", group["lr"])

    def build(optimizer: Any, numbers: Mapping[str, int]) -> Any:
        given = init.get("init_args") or {}
        arguments = {
            **{key: given[key] for key in given.keys()},  # noqa: SIM118 (it may be a Namespace)
            **numbers,
        }
        return instantiate_class(
            optimizer, {"class_path": init["class_path"], "init_args": arguments}
        )

    return CountedSchedule(names, build, settings)


def _as_mapping(scheduler: Any) -> dict[str, Any]:
    return dict(scheduler) if isinstance(scheduler, Mapping) else {"scheduler": scheduler}
