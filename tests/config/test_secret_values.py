"""Values that are secret by what they are called: hidden wherever a config is saved or shown."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from lightkit.config import Flag, Resolved, dump_yaml, resolve
from lightkit.config.secret_values import drop_masked_addresses, find_masked_values
from lightkit.config.tree import to_plain

CANARY = "c4nary/5f+2b"


def resolve_text(folder: Path, text: str, *flags: str, **variables: str) -> Resolved:
    (folder / "x.yaml").write_text(text)
    said = [Flag(flag.partition("=")[0], flag.partition("=")[2], f"--{flag}") for flag in flags]
    return resolve([folder / "x.yaml"], flags=said, environ=variables)


def saved(resolved: Resolved) -> str:
    return dump_yaml(resolved.with_references(resolved.values))


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (f"data: {{token: '{CANARY}'}}", []),
        ("data: {}", [f"data.token={CANARY}"]),
        (
            f"data: {{tokens: 3, api_keys: {{}}, credentials: [['{CANARY}'], {{a: '{CANARY}'}}]}}",
            [],
        ),
        (f"data: {{token: '{CANARY}'}}\nmodel: {{name: 'a-${{data.token}}-b'}}", []),
        (f"a: 'http://me:{CANARY}@host/x'", []),
        (f"a: 'http://me:{quote(CANARY, safe='')}@host/x?b=1'", []),
        (f"a: 'https://host/x?token={CANARY}'", []),
        (f"data: {{token: '${{oc.env:NONE,{CANARY}}}'}}", []),
        (f"data: {{token: '{CANARY}'}}", ["data.token=c4nary-another"]),
        ("data: {}", [f"data={{token: '{CANARY}'}}"]),
    ],
    ids=[
        *("file", "flag", "nested", "interpolated", "password", "quoted", "query", "default"),
        *("replaced", "mapping"),
    ],
)
def test_a_secret_is_in_no_saved_config_and_masked_in_texts(
    tmp_path: Path, text: str, flags: list[str]
) -> None:
    resolved = resolve_text(tmp_path, text, *flags)
    assert "c4nary" not in saved(resolved)
    assert "***" in saved(resolved)
    for said in (CANARY, quote(CANARY), quote(CANARY, safe=""), repr(CANARY)):
        assert "c4nary" not in resolved.masked(f"before {said}, after")
    assert "before" in resolved.masked(f"before {CANARY}, after")


def test_what_only_refers_to_a_secret_stays_a_reference(tmp_path: Path) -> None:
    resolved = resolve_text(
        tmp_path, f"data: {{token: '{CANARY}'}}\nmodel: {{name: 'a-${{data.token}}-b'}}"
    )
    assert saved(resolved) == "data:\n  token: '***'\nmodel:\n  name: a-${data.token}-b\n"


def test_what_came_from_the_environment_is_a_reference_under_such_a_key_too(tmp_path: Path) -> None:
    resolved = resolve_text(tmp_path, "data: {token: '${oc.env:MINE}'}", MINE=CANARY)
    assert saved(resolved) == "data:\n  token: ${oc.env:MINE}\n"
    assert resolved.masked(CANARY) == "${oc.env:MINE}"


def test_variables_that_no_config_names_are_masked_too(tmp_path: Path) -> None:
    variables = {
        "MLFLOW_TRACKING_URI": f"http://me:{CANARY}@host",
        "SLACK_WEBHOOK_URL": "https://hooks/services/T0/B1",
    }
    resolved = resolve_text(tmp_path, "a: 1", **variables)
    assert resolved.masked(f"x {CANARY} y") == "x *** y"
    assert resolved.masked("url: /services/T0/B1") == "url: ${oc.env:SLACK_WEBHOOK_URL}"


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"JWT_SECRET": "nightly-jobs"}, "runs/nightly-jobs/20261122-081856-f1e0"),
        ({"JWT_SECRET": "jobs-store"}, "/srv/jobs-store/runs"),
        ({"JWT_SECRET": "/srv/jobs-store"}, "/srv/jobs-store/runs"),
        ({"DB_PASSWORD": "accuracy"}, "test/accuracy"),
        ({"DB_URL": "http://me:jobs-store@host/"}, "/srv/jobs-store/runs"),
    ],
    ids=["name", "part-of-path", "path", "word", "address"],
)
def test_a_variable_of_others_makes_no_path_or_metric_unreadable(
    tmp_path: Path, variables: dict[str, str], text: str
) -> None:
    resolved = resolve_text(
        tmp_path, "run: {name: nightly-jobs, root: /srv/jobs-store/runs}", **variables
    )
    assert resolved.masked(text) == text


def test_the_name_of_the_config_file_is_the_jobs_where_it_has_none(tmp_path: Path) -> None:
    (tmp_path / "nightly-7.yaml").write_text("a: 1")
    resolved = resolve(
        [tmp_path / "nightly-7.yaml"], environ={"JWT_SECRET": "nightly-7", "API_KEY": "nightly-8"}
    )
    assert resolved.masked("runs/nightly-7, nightly-8") == "runs/nightly-7, ${oc.env:API_KEY}"


def test_what_a_config_or_a_tracker_reads_is_masked_though_it_be_a_word(tmp_path: Path) -> None:
    variables = {"MLFLOW_TRACKING_PASSWORD": "correcthorse", "MINE": "batterystaple"}
    resolved = resolve_text(tmp_path, "data: {token: '${oc.env:MINE}'}", **variables)
    assert (
        resolved.masked("correcthorse batterystaple")
        == "${oc.env:MLFLOW_TRACKING_PASSWORD} ${oc.env:MINE}"
    )


@pytest.mark.parametrize(
    "value", ["7", "abc", "test", "'true'"], ids=["number", "short", "common", "quoted"]
)
def test_a_short_or_common_secret_is_hidden_in_its_place_alone(tmp_path: Path, value: str) -> None:
    resolved = resolve_text(tmp_path, f"data: {{password: {value}}}\nname: abc test 7 true")
    assert saved(resolved) == "data:\n  password: '***'\nname: abc test 7 true\n"
    assert resolved.masked("abc test 7 true") == "abc test 7 true"


def test_a_short_secret_is_masked_as_a_word_only(tmp_path: Path) -> None:
    resolved = resolve_text(tmp_path, "data: {password: ship}")
    assert resolved.masked("ship, friendship ('ship')") == "***, friendship ('***')"


@pytest.mark.parametrize(
    "text",
    [
        "data: {pad_token: '<pad>', max_tokens: 4096}",
        "data: {token: null}",
        "a: {monitor: val/token}",
        "token: true",
        (
            "model: {video_token: <video>, word_delimiter_token: '|', num_prefix_token: 3,"
            " bot_token: 5}"
        ),
        "gate: {slices: {cookie: 0.8, pass: 0.5}}",
        "told: {webhook: {url: 'http://127.0.0.1:9/x'}, slack: false}",
    ],
    ids=["tokenizer", "null", "value", "switch", "tokens", "classes", "callbacks"],
)
def test_what_is_no_secret_is_saved_as_it_is(tmp_path: Path, text: str) -> None:
    resolved = resolve_text(tmp_path, text)
    assert resolved.with_references(resolved.values) == resolved.values
    assert resolved.secrets == ()


def test_a_secret_of_many_lines_and_quotes_is_masked_line_by_line(tmp_path: Path) -> None:
    resolved = resolve_text(
        tmp_path, "data:\n  private_key: |\n    -----BEGIN KEY-----\n    MIIEvQ'IBAD\"ANBg\n"
    )
    for text in (
        "-----BEGIN KEY-----\nMIIEvQ'IBAD\"ANBg",
        "got MIIEvQ'IBAD\"ANBg",
        repr("MIIEvQ'IBAD\"ANBg"),
    ):
        assert "MIIEvQ" not in resolved.masked(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data: {token: '***'}", "data.token: *** stands for a secret"),
        ("x: {tracking_uri: 'http://me:***@host'}", "x.tracking_uri: *** stands for a secret"),
        ("a: 'https://host/?token=***'", "a: *** stands for a secret"),
    ],
    ids=["key", "password", "query"],
)
def test_a_value_that_a_run_did_not_keep_is_asked_for(tmp_path: Path, text: str, says: str) -> None:
    (masked,) = find_masked_values(resolve_text(tmp_path, text).tree)
    assert says in str(masked)
    assert "${oc.env:NAME}" in str(masked)


def test_stars_elsewhere_and_values_that_are_said_again_are_fine(tmp_path: Path) -> None:
    assert (
        list(
            find_masked_values(
                resolve_text(
                    tmp_path, "data: {token: '***', a: '***'}", "data.token=said-again"
                ).tree
            )
        )
        == []
    )


PLACES_OF_CALLBACKS = {
    "named": "callbacks: {{notify: {entry}}}",
    "list": "trainer: {{callbacks: [{entry}]}}",
    "single": "trainer: {{callbacks: {entry}}}",
    "appended": "trainer: {{callbacks+: [{entry}]}}",
}


@pytest.mark.parametrize("place", PLACES_OF_CALLBACKS.values(), ids=PLACES_OF_CALLBACKS)
def test_an_address_of_apprise_is_secret_wherever_the_callback_stands(
    tmp_path: Path, place: str
) -> None:
    entry = f"{{class_path: AppriseNotifier, init_args: {{urls: ['tgram://{CANARY}/']}}}}"
    resolved = resolve_text(tmp_path, place.format(entry=entry))
    assert CANARY not in saved(resolved)
    assert CANARY not in resolved.masked(f"sent to tgram://{CANARY}/")


@pytest.mark.parametrize("place", PLACES_OF_CALLBACKS.values(), ids=PLACES_OF_CALLBACKS)
@pytest.mark.parametrize("address", ["webhook_url: '***'", "urls: [json://a, '***']"])
def test_an_address_that_a_run_did_not_keep_is_null(
    tmp_path: Path, place: str, address: str
) -> None:
    before = f"{{class_path: MyNotifier, init_args: {{{address}, title: '***'}}}}"
    after = before.replace(address, f"{address.partition(':')[0]}: null")
    tree = resolve_text(tmp_path, place.format(entry=before)).tree
    expected = resolve_text(tmp_path, place.format(entry=after)).values
    assert to_plain(drop_masked_addresses(tree)) == expected


def test_what_is_no_address_for_messages_keeps_its_stars(tmp_path: Path) -> None:
    text = (
        "data: {init_args: {urls: '***'}}\nrun: {heartbeat_url: '***', name: '***'}\n"
        "callbacks: {notify: {class_path: N, init_args: {urls: [json://a]}}}\n"
    )
    resolved = resolve_text(tmp_path, text)
    expected = resolved.values
    expected["run"]["heartbeat_url"] = None
    assert to_plain(drop_masked_addresses(resolved.tree)) == expected
