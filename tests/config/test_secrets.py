"""Secrets: what a key or an address says of one, and the mask of texts that others write."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.config import Resolved, error_at, resolve
from lightkit.config.origins import shortened
from lightkit.config.secrets import Mask, choose_reference, is_secret, list_forms, mask, mask_line
from lightkit.errors import ConfigError, cut

TELLING = [
    *("password", "db_password", "passwd", "token", "hf_token", "apiToken", "client_secret"),
    *("secret", "api_key", "apikey", "apiKey", "AWS_SECRET_ACCESS_KEY", "access_key"),
    *("account-key", "webhook_url", "heartbeat_url", "SLACK_WEBHOOK_URL", "Authorization"),
    *("access_tokens", "X-Api-Key", "credentials", "MLFLOW_TRACKING_PASSWORD", "access_token"),
    *("accessToken", "bearer_token", "X-Auth-Token", "HUGGING_FACE_HUB_TOKEN", "CI_JOB_TOKEN"),
    *("token2", "VIDEO_TOKEN", "s3_token", "authToken", "authtoken", "PGPASSWORD", "DB_PASS"),
    *("smtp_pass", "MYSQL_PWD", "pwd", "passcode", "PASSWORD1", "db_password_2", "SLACK_WEBHOOK"),
    *("slack_webhook", "GITHUB_PAT", "github_pat", "bearer", "cookie", "session_cookie"),
    *("auth_header", "SAS_KEY", "FERNET_KEY", "ENCRYPTION_KEY", "signing_key", "SMTP_PASS"),
]
PLAIN = [
    *("pad_token", "eos_token", "max_tokens", "max_new_tokens", "num_tokens", "tokens"),
    *("tokenizer", "token_id", "TOKENIZERS_PARALLELISM", "monkey", "key", "keys", "PWD", "url"),
    *("tracking_uri", "secretary", "password_length", "", "3", "has_secrets_inside", "monitor"),
    *("OLD_PWD", "OLDPWD", "webhook", "forward_pass", "num_pass", "pass", "compass", "pat", "spat"),
    *("header", "sort_key", "query_key", "TOKENS", "cookies_eaten", "video_token"),
    *("word_delimiter_token", "level_token", "audio_token", "class_token", "blank_token"),
    *("query_token", "prefix_token", "suffix_token", "middle_token", "fill_token", "eod_token"),
    *("label_token", "distilled_token", "num_prefix_token", "image_token"),
    *("additional_special_tokens", "boi_token", "sepToken"),
]


@pytest.mark.parametrize("key", TELLING)
def test_a_key_reports_that_its_value_is_secret(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize("key", PLAIN)
def test_other_keys_report_nothing(key: str) -> None:
    assert not is_secret(key)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("bot_token", 3, False),
        ("session_token", 0.5, False),
        ("token", 50256, False),
        ("cookie", 0.8, False),
        ("cookie", "a=b", True),
        ("password", 4815, True),
        ("api_key", 4815, True),
        ("webhook", "https://hooks/x", True),
        ("webhook", "lightkit.callbacks.WebhookNotifier", False),
    ],
)
def test_a_number_is_no_token_and_a_webhook_is_an_address(
    key: str, value: object, expected: bool
) -> None:
    assert is_secret(key, value) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("abc", True),
        (1234, True),
        (None, False),
        (True, False),
        ("", False),
        ("${oc.env:X}", False),
        ([1], False),
    ],
    ids=["text", "number", "null", "switch", "empty", "reference", "list"],
)
def test_only_a_value_is_hidden(value: object, expected: bool) -> None:
    assert is_secret("password", value) is expected


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg://me:p%40ss@db:5432/x", "postgresql+psycopg://me:***@db:5432/x"),
        ("http://:pa@ss@host", "http://:***@host"),
        ("mysql://me:pa/ss@db/x", "mysql://me:***@db/x"),
        ("see http://a:b@c and ftp://d:e@f.", "see http://a:***@c and ftp://d:***@f."),
        ("https://ghp_0123456789abcdef@github.com/x", "https://***@github.com/x"),
        ("https://h/x?a=1&token=abc&sig=d%2Fe#f", "https://h/x?a=1&token=***&sig=***#f"),
        ("http://me:${oc.env:PW}@host", "http://me:${oc.env:PW}@host"),
        ("https://h/x?upload-token=abc&mytoken=d", "https://h/x?upload-token=***&mytoken=***"),
        ("http://host:80/path@x", "http://host:80/path@x"),
        ("ssh://git@host:22/x", "ssh://git@host:22/x"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_an_address_is_shown_without_what_it_keeps_to_itself(text: str, shown: str) -> None:
    assert mask(text) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("    webhook_url: https://hooks/x  # mine", "    webhook_url: ***"),
        ("--data.init_args.token=abc", "--data.init_args.token=***"),
        ("data.init_args.token+=abc", "data.init_args.token+=***"),
        (
            "callbacks: {slack: {init_args: {webhook_url: abc}}}",
            "callbacks: {slack: {init_args: {webhook_url: ***",
        ),
        ("{'api_key': 'abc', x: 1}", "{'api_key': ***"),
        ("password:", "password:"),
        (
            "callbacks: {webhook: {init_args: {url: 'http://h/x'}}}",
            "callbacks: {webhook: {init_args: {url: 'http://h/x'}}}",
        ),
        ("webhook: 'http://h/x'", "webhook: ***"),
        ("token: ${oc.env:TOKEN}", "token: ${oc.env:TOKEN}"),
        ("tracking_uri: http://a:b@c", "tracking_uri: http://a:***@c"),
        ("max_epochs: ten", "max_epochs: ten"),
    ],
)
def test_a_line_ends_where_a_secret_begins(line: str, shown: str) -> None:
    assert mask_line(line) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:pw@host:5000/x", "http://***@host:5000/x"),
        ("postgresql://me:p@w@host/db", "postgresql://***@host/db"),
        ("http://token@host and http://host", "http://***@host and http://host"),
        ("http://host/a@b", "http://host/a@b"),
        ("sqlite:///runs/mlflow.db", "sqlite:///runs/mlflow.db"),
    ],
)
def test_users_of_addresses_are_hidden_on_request(text: str, shown: str) -> None:
    assert mask(text, hides_users=True) == shown


def test_containers_are_masked_by_their_keys_and_a_known_secret_is_its_reference() -> None:
    known = Mask([("bl4ckbird", "${oc.env:TOKEN}")])
    value = {
        "token": "bl4ckbird",
        "password": 4815,
        "note": "of bl4ckbird at http://me:pw@host",
        "api_key": ["first", "second"],
        "pad_token": "<pad>",
        "cookie": 0.8,
        "secret": None,
    }
    assert mask(value, known) == {
        "token": "${oc.env:TOKEN}",
        "password": "***",
        "note": "of ${oc.env:TOKEN} at http://me:***@host",
        "api_key": ["***", "***"],
        "pad_token": "<pad>",
        "cookie": 0.8,
        "secret": None,
    }


@pytest.mark.parametrize(
    ("value", "is_secret", "text", "reference"),
    [
        ("abc", True, None, "***"),
        ("abc", False, None, None),
        (float("nan"), False, None, None),
        ("http://me:pw@host", False, None, "http://me:***@host"),
        ("abc", True, "${oc.env:A}", "${oc.env:A}"),
        ("abc", True, "${oc.env:A,abc}", "${oc.env:A,'***'}"),
        ("abc", False, "${oc.env:A,abc}", "${oc.env:A,abc}"),
        ("", True, "${oc.env:A,null}", "${oc.env:A,null}"),
    ],
)
def test_the_reference_of_a_value(
    value: object, is_secret: bool, text: str | None, reference: str | None
) -> None:
    assert choose_reference(value, is_secret=is_secret, text=text) == reference


def test_a_known_value_is_masked_though_it_looks_like_a_reference() -> None:
    assert list_forms("pa${ss}", "${oc.env:A}") == {"pa${ss}": "${oc.env:A}"}
    assert list_forms("pa${ss}") == {}


def test_common_words_and_short_ones_are_looked_for_nowhere_else() -> None:
    found = list_forms("http://me:test@a http://me:abc@b http://me:l0ng%2Fer@c", is_secret=False)
    assert found == {"l0ng%2Fer": "***", "l0ng/er": "***"}


@pytest.mark.parametrize(
    "text",
    [
        "x" * 100_000,
        "a_" * 50_000,
        "a:" * 50_000,
        "a=b " * 25_000,
        "a://:" * 20_000,
        "?a=b" * 25_000,
    ],
    ids=["word", "words", "colons", "settings", "addresses", "queries"],
)
def test_long_text_takes_time_in_proportion(text: str) -> None:
    def seconds(text: str) -> float:
        began = time.process_time()
        mask_line(text)
        list_forms(text, is_secret=False)
        return time.process_time() - began

    seconds(text[:1000])
    assert seconds(text) < 60 * seconds(text[: len(text) // 10]) + 1


LONG = "".join(f"{number:04}k" for number in range(400))
SECRETS = {
    "both-quotes": "hun'ter\"q",
    "single-quote": "hun'ter",
    "double-quote": 'hun"ter',
    "backslash": "hun\\ter",
    "backslash-quote": "hun\\'t\"er",
    "newline": "first part\nsecond part",
    "escape": "hun\x1bter",
    "accent": "hünter",
}


def with_secret(folder: Path, secret: str) -> Resolved:
    (folder / "x.yaml").write_text("a: '${oc.env:KEY}'\n")
    return resolve([folder / "x.yaml"], environ={"KEY": secret})


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize(
    "write",
    [
        str,
        repr,
        json.dumps,
        lambda secret: json.dumps(secret, ensure_ascii=False),
        lambda secret: str(ConfigError(secret)),
        lambda secret: str(ConfigError(f"got {secret!r}")),
        lambda secret: repr([f"it's {secret}"]),
        lambda secret: repr([f'"{secret}']),
    ],
    ids=[
        "as-it-is",
        "repr",
        "json",
        "json-unicode",
        "error",
        "repr-in-error",
        "beside-quote",
        "beside-double-quote",
    ],
)
def test_a_secret_is_masked_however_it_is_escaped(
    tmp_path: Path, secret: str, write: Callable[[str], str]
) -> None:
    masked = with_secret(tmp_path, secret).masked(write(secret))
    assert "${oc.env:KEY}" in masked
    assert "hun" not in masked
    assert "ter" not in masked
    assert "part" not in masked


@pytest.mark.parametrize(
    "text",
    [
        shortened(LONG),
        f"a: expected an integer, got {shortened(LONG)}; what else",
        cut(LONG),
        cut(f"got {LONG!r}, expected a number", 1000),
        str(error_at(f"a: expected a number, got {LONG!r}")),
        str(error_at(f"a: got {{'b': {LONG!r}}}; one of {'x' * 300}")),
        f"{LONG[:20]}…",
    ],
    ids=[
        "shortened",
        "shortened-inside",
        "cut",
        "cut-message",
        "mistake",
        "mistake-with-tail",
        "ellipsis",
    ],
)
def test_what_a_cut_leaves_of_a_secret_is_masked(tmp_path: Path, text: str) -> None:
    assert "00" in text
    masked = with_secret(tmp_path, LONG).masked(text)
    assert "${oc.env:KEY}" in masked
    assert "00" not in masked


def test_a_line_of_a_secret_is_masked(tmp_path: Path) -> None:
    resolved = with_secret(tmp_path, "BEGIN KEY\nc2VjcmV0\nEND")
    assert resolved.masked("got c2VjcmV0") == "got ${oc.env:KEY}"


def test_what_is_no_secret_stays_next_to_dots(tmp_path: Path) -> None:
    resolved = with_secret(tmp_path, "s3cret-of-mine")
    assert (
        resolved.masked("loading ... done, s3 ... mine") == "loading ... done, s3 ... ${oc.env:KEY}"
    )
    assert resolved.masked("loading... done") == "loading... done"
