"""The runs that a registry still needs: of versions that an alias points to, or to which it can be rolled back."""

from __future__ import annotations

from collections.abc import Iterator

from lightkit.registry.champion import versions_of
from lightkit.registry.promotion import PromotionLog, champions
from lightkit.registry.store import Store

__all__ = ["needed_runs"]

_ROLLBACK = 2  # the version that an alias points to, and the one before
_MOST = 1000


def needed_runs(store: Store) -> set[str]:
    """Give the runs, as ``NAME/ID``, of all registered models' versions that are in use or the one before.

    Args:
        store: The registry.

    Raises:
        ConfigError: If it refuses.
        ServerAway: If it does not answer.
    """
    found: set[str] = set()
    for name in _names(store):
        with store.busy(f"read the versions of {name!r}"):
            model = store.client.get_registered_model(name)
            moves = PromotionLog(store, name).moves()
        aliases = {alias: str(version) for alias, version in dict(model.aliases).items()}
        wanted = {*aliases.values()}
        for alias in {*aliases, *(move.alias for move in moves)}:
            wanted |= {*champions(moves, alias)[-_ROLLBACK:]}
        tags = (version.tags for version in versions_of(store, name) if str(version.version) in wanted)
        found |= {run for each in tags if (run := each.get("run"))}
    return found


def _names(store: Store) -> Iterator[str]:
    token = None
    while True:
        with store.busy("list its registered models"):
            page = store.client.search_registered_models(max_results=_MOST, page_token=token)
        yield from (model.name for model in page)
        if not (token := page.token):
            return
