"""Addresses of notifiers in later stages: handed on in the environment, or missed in a warning."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.cli.notifications import pass_on_notifiers, warn_of_lost_addresses
from lightkit.config import Flag, Resolved, resolve

ADDRESS = "https://hooks.test/T0/c4nary"
ENTRY = "{{class_path: SlackNotifier, init_args: {{webhook_url: {address}}}}}"
PLACES = {
    "named": ("callbacks: {{team: {entry}}}", "callbacks.team"),
    "list": ("trainer: {{callbacks: [{entry}]}}", "trainer.callbacks.0"),
    "single": ("trainer: {{callbacks: {entry}}}", "trainer.callbacks"),
}


def resolve_place(folder: Path, place: str, address: str) -> Resolved:
    (folder / "c.yaml").write_text(place.format(entry=ENTRY.format(address=address)))
    return resolve([folder / "c.yaml"], environ={}, subcommand="fit")


@pytest.mark.parametrize(("place", "key"), PLACES.values(), ids=PLACES)
def test_an_address_is_handed_on_where_other_users_do_not_see_it(
    tmp_path: Path, place: str, key: str
) -> None:
    flags, environment = pass_on_notifiers(resolve_place(tmp_path, place, ADDRESS))
    (name,) = environment
    assert environment == {name: ADDRESS}
    assert len(flags) == 1
    assert flags[0].startswith(f"--{key.removesuffix('.0')}=")
    assert f"${{oc.env:{name}}}" in flags[0]
    assert ADDRESS not in flags[0]


@pytest.mark.parametrize(("place", "key"), PLACES.values(), ids=PLACES)
def test_a_notifier_whose_address_is_lost_is_named(
    tmp_path: Path, place: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    with runs.activate(runs.create(tmp_path / "runs", "job")) as run:
        run.config_path.write_text(place.format(entry=ENTRY.format(address="'***'")))
        resolved = resolve_place(tmp_path, place, "null")
        with caplog.at_level(logging.WARNING, logger="lightkit"):
            warn_of_lost_addresses(resolved, run)
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith(f"{key} sends nothing: its webhook_url is written in the config")
    assert text.endswith(f"--{key}.webhook_url=ADDRESS")
    again = [Flag(f"{key}.webhook_url", ADDRESS, "--flag")]
    (entry,) = (
        resolve([tmp_path / "c.yaml"], flags=again, environ={}).entries_of("callbacks").values()
    )
    assert entry["init_args"] == {"webhook_url": ADDRESS}
