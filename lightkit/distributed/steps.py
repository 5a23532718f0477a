"""What is to happen between the gradients of an optimizer's step and its update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

__all__ = ["before_update"]


def before_update(act: Callable[[Optimizer], None]) -> Callable[..., Any]:
    """Make a pre-hook of a step that acts once the closure, if there is one, has computed gradients.

    Args:
        act: Told the optimizer.
    """

    def hook(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            act(optimizer)
            return None

        def closing() -> Any:
            loss = closure()
            act(optimizer)
            return loss

        return args[:1], {**kwargs, "closure": closing}

    return hook
