"""Secrets.

Whether the value of a key is one, what stands for it where a config is saved, and the mask of a
text.

`is_secret`, `choose_reference` and `mask` answer these three, `mask_line` the last for a line of a
config; `list_forms` lists what a `Mask` is made of.
"""

from __future__ import annotations

import difflib
import html
import json
import re
from argparse import Namespace
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus, unquote, urlsplit

from lightkit.config.bounds import is_any_number
from lightkit.errors import LightkitError

HIDDEN = "***"
"""What stands for a secret in all that is saved, printed or logged."""
_SHORTEST = 4  # characters; what is shorter, or a common word, is hidden in its own place only
_SHORTEST_PATH = 8  # of an address
_SHORTEST_USER = 16  # of an address without a password: a token stands there
# What so many texts hold that hiding it everywhere would hide them.
_COMMON = {
    *("admin", "auto", "best", "data", "default", "false", "guest", "last", "local", "localhost"),
    *("mlflow", "model", "name", "none", "null", "password", "postgres", "root", "runs", "secret"),
    *("test", "token", "train", "true", "user", "username"),
}
_SECRET_WORDS = (
    *("apikey", "apitoken", "authorization", "authtoken", "accesstoken", "bearer", "cookie"),
    *("cookies", "credential", "credentials", "passcode", "passphrase", "secret", "secrets"),
)
_SECRET_ENDS = ("password", "passwd")  # PGPASSWORD
_SECRET_PAIRS = {
    *("access key", "account key", "api key", "app key", "auth header", "encryption key"),
    *("fernet key", "heartbeat url", "hmac key", "jwt key", "master key", "private key", "sas key"),
    *("secret key", "shared key", "signing key", "ssh key", "storage key"),
    *("subscription key", "webhook url"),
}
# Other words before `token` are a tokenizer's: `pad_token`, `video_token`, `word_delimiter_token`.
_OF_TOKENS = {
    *("access", "admin", "api", "app", "auth", "authorization", "azure", "bearer", "bot", "client"),
    *("comet", "csrf", "databricks", "deploy", "docker", "face", "gh", "git", "github", "gitlab"),
    *("hf", "hub", "huggingface", "id", "identity", "job", "jwt", "kaggle", "login", "mlflow"),
    *("neptune", "npm", "oauth", "personal", "private", "pypi", "refresh", "registry", "s", "sas"),
    *("secret", "security", "server", "service", "session", "slack", "telegram", "tracking"),
    *("upload", "user", "vault", "wandb", "webhook", "xsrf"),
}
# What `pass` and `pwd` are of where they are passwords; `forward_pass` is none.
_OF_PASSWORDS = {
    *("admin", "database", "db", "email", "ftp", "http", "imap", "ldap", "login", "mail", "mongo"),
    *("mongodb", "mysql", "pg", "postgres", "postgresql", "proxy", "redis", "root", "server"),
    *("smtp", "sql", "ssh", "user"),
}
_OF_PATS = {"ado", "azure", "databricks", "devops", "gh", "git", "github", "gitlab"}
_OF_MANY_TOKENS = {"access", "api", "auth"}
_QUALIFIED: Mapping[str, Collection[str] | None] = {
    "pass": _OF_PASSWORDS,
    "pat": _OF_PATS,
    "pwd": _OF_PASSWORDS,
    "token": _OF_TOKENS,
    "tokens": _OF_MANY_TOKENS,
    "webhook": None,  # after any
}
# Under them, a number is something else: the id of a token, the score of a class.
_NEVER_NUMBERS = ("bearer", "cookie", "cookies", "pass", "pat", "token", "tokens", "webhook")
_QUERY_KEYS = ("code", "key", "sig", "signature", "x-amz-credential", "x-amz-signature")
# of `${oc.env:NAME,x}`
_DEFAULT = re.compile(r"(?P<head>\$\{\s*oc\.env:[^,${}]+,)(?P<value>[^${}]*)\}")
_NO_DEFAULT = ("", "null")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# All lengths are bounded: a line may be of a million characters.
_ADDRESS = re.compile(r"""["']?[A-Za-z][\w+.-]*://""")
# SQLAlchemy takes a password with a slash in it; digits before a slash are a port.
_USER = re.compile(
    r"(?P<head>[a-zA-Z][\w+.-]{0,30}://)(?P<user>[^\s/?#:@]{0,500})"
    r"(?P<colon>:?)(?P<password>(?<=:)(?:[^\s/?#]{0,500}|(?!\d+[/?#])[^\s@]{0,500})|)@"
)
_ANY_USER = re.compile(r"(?<=//)[^/\s]*@")
_QUERY = re.compile(r"(?P<head>[?&;](?P<key>[\w.-]{1,200})=)(?P<value>[^\s&;#'\"]+)")
_SETTING = re.compile(
    r"""(?<![\w.+-])(?P<key>[\w.+-]{1,200})["']?\s{0,99}[:=]\s*(?P<value>[^\s#].{0,200})"""
)
_Value = TypeVar("_Value")


def is_secret(key: Any, value: Any = "any text") -> bool:
    """Return whether a value is not to be shown next to its key.

    Such as ``password``, ``api_key``, ``webhook_url``.

    Args:
        key: The last word of a dotted key, or the name of a variable.
        value: The value: null, a switch, an empty text or a reference is none, a number is no
            token, and a ``webhook`` is an address. Any text if it is left out.
    """
    return _can_be_secret(value) and _names_secret(str(key), value)


def choose_reference(value: Any, *, is_secret: bool, text: str | None = None) -> str | None:
    """Return the text that stands for a value where a config is saved.

    None if the value itself may stand there.

    Args:
        value: The value.
        is_secret: Whether its key says that it is secret, as `is_secret`, or a key above it.
        text: The interpolation that used the environment for it, if one did.
    """
    if text is not None:
        is_hidden = is_secret and read_default(text) is not None
        return _DEFAULT.sub(rf"\g<head>'{HIDDEN}'}}", text) if is_hidden else text
    if is_secret and _can_be_secret(value):
        return HIDDEN
    if not isinstance(value, str):
        return None
    shown = _mask_addresses(value)
    return None if shown == value else shown


def read_default(text: str) -> str | None:
    """Return the default in an interpolation of a variable; None if it has none."""
    match = _DEFAULT.search(text)
    default = "" if match is None else match["value"].strip().strip("'\"")
    return None if default in _NO_DEFAULT else default


def mask(
    value: _Value,
    known: Mask | None = None,
    *,
    key: object = "",
    hides_users: bool = False,
) -> _Value:
    """Return a text, or plain containers of texts, with references in the place of secrets.

    Those are the known ones, the passwords and tokens of all addresses, and values whose key says
    that they are.

    Args:
        value: The value.
        known: Secrets of a config.
        key: Key of the value.
        hides_users: Whether the users of addresses are hidden, too.
    """
    masked: Any = value
    if isinstance(value, str):
        text = value if known is None else known(value)
        masked = _mask_addresses(text, hides_users=hides_users)
    elif isinstance(value, Namespace):
        masked = type(value)(**mask(vars(value), known))
    elif isinstance(value, Mapping):
        masked = {name: mask(child, known, key=name) for name, child in value.items()}
    elif type(value) in (list, tuple):
        masked = type(value)(mask(child, known, key=key) for child in value)  # type: ignore[call-arg, attr-defined]
    return HIDDEN if is_secret(key, masked) else masked  # type: ignore[return-value]


def list_forms(value: Any, reference: str = HIDDEN, *, is_secret: bool = True) -> dict[str, str]:
    """List the texts that give a value away, each with its reference.

    Not those that many other texts hold.

    Args:
        value: The value.
        reference: What stands for it.
        is_secret: Whether all of it is secret; else the passwords and tokens of the addresses in
            it.
    """
    found: dict[str, str] = {}
    if is_secret and (reference != HIDDEN or (_can_be_secret(value) and value != HIDDEN)):
        found |= _list_forms(str(value), reference)
    if not is_secret and isinstance(value, str) and "://" in value:
        for secret in _list_credentials(value):
            found |= _list_forms(secret, HIDDEN)
    return found


# -- keys and values -------------------------------------------------------------------------------


def _can_be_secret(value: Any) -> bool:
    """Return whether a value is a text or a number, and no reference."""
    if isinstance(value, str):
        return value.strip() != "" and "${" not in value
    return is_any_number(value)


def _names_secret(key: str, value: Any) -> bool:
    words = [word.lower() for word in _WORD.findall(key) if not word.isdigit()][-2:]
    if not words:
        return False
    before = words[0] if len(words) > 1 else ""
    last = words[-1]
    if last in _NEVER_NUMBERS and isinstance(value, (int, float)):
        return False
    if last in _QUALIFIED:
        return _is_qualified(key, before, last, value)
    return last in _SECRET_WORDS or last.endswith(_SECRET_ENDS) or " ".join(words) in _SECRET_PAIRS


def _is_qualified(key: str, before: str, last: str, value: Any) -> bool:
    """Judge a word that is secret only after some others.

    Such as ``token``, or in the name of a variable.
    """
    if last == "webhook" and not before:  # the name of a callback, too
        return isinstance(value, str) and _ADDRESS.match(value) is not None
    if last in ("token", "pwd") and not before:
        return key.rstrip("0123456789") != "PWD"  # the shell's folder
    is_variable = key.isupper() and before != "" and last != "pwd"
    return is_variable or _QUALIFIED[last] is None or before in (_QUALIFIED[last] or ())


@cache
def _is_near_secret(key: str) -> bool:
    """Return whether a key is most likely a slip of one that says that its value is secret.

    ``tokne``, ``api_kye``.
    """
    words = [word.lower() for word in _WORD.findall(key)][-2:]
    if not words or words[-1] in _QUALIFIED:
        return False
    alone = (*_SECRET_WORDS, *_SECRET_ENDS, "token")
    pairs = (
        difflib.get_close_matches(" ".join(words), _SECRET_PAIRS, n=1, cutoff=0.8)
        if len(words) > 1
        else ()
    )
    return bool(pairs or difflib.get_close_matches(words[-1], alone, n=1, cutoff=0.8))


# -- texts -----------------------------------------------------------------------------------------


def _mask_addresses(text: str, *, hides_users: bool = False) -> str:
    if hides_users:
        text = _ANY_USER.sub(f"{HIDDEN}@", text)
    if "://" in text:
        text = _USER.sub(_hidden_user, text)
    return _QUERY.sub(_hidden_query, text)


@lru_cache(maxsize=1)  # a thousand errors in one line show it a thousand times
def mask_line(line: str) -> str:
    """Return a line of a config file or a flag, up to the key of a secret."""
    at = 0
    while setting := _SETTING.search(line, at):
        at = setting.start("value")
        key = setting["key"].removesuffix("+").rpartition(".")[2]
        value = setting["value"]
        if is_secret(key, value) or (_can_be_secret(value) and _is_near_secret(key)):
            return _mask_addresses(line[:at]) + HIDDEN
    return _mask_addresses(line)


def _list_credentials(text: str) -> Iterator[str]:
    """List the passwords and tokens of the addresses in a text."""
    for match in _USER.finditer(text):
        if _hidden_user(match) != match[0]:
            yield match["password"] if match["colon"] else match["user"]
    for match in _QUERY.finditer(text):
        if _hidden_query(match) != match[0]:
            yield match["value"]


def _hidden_user(match: re.Match[str]) -> str:
    user = match["user"]
    password = match["password"]
    if match["colon"]:
        return f"{match['head']}{user}:{HIDDEN}@" if password and "${" not in password else match[0]
    is_token = match["head"].startswith("http") and len(user) >= _SHORTEST_USER
    return f"{match['head']}{HIDDEN}@" if is_token and "${" not in user else match[0]


def _hidden_query(match: re.Match[str]) -> str:
    key = match["key"].lower()
    is_hidden = key in _QUERY_KEYS or key.endswith("token") or is_secret(match["key"])
    return match["head"] + HIDDEN if is_hidden and "${" not in match["value"] else match[0]


def _list_forms(secret: str, reference: str) -> dict[str, str]:
    forms = {secret, unquote(secret), secret.strip()}
    if "://" in secret:  # errors of HTTP clients show the path alone
        with suppress(ValueError):  # of a host that is none, as in https://[abc
            parts = urlsplit(secret)
            rest = f"{parts.path}?{parts.query}" if parts.query else parts.path
            forms |= {form for form in (rest, parts.path) if len(form) >= _SHORTEST_PATH}
    return {
        form: reference for form in forms if len(form) >= _SHORTEST and form.lower() not in _COMMON
    }


# -- secrets in the texts of others ----------------------------------------------------------------

_SHORTEST_PIECE = 4  # characters of a secret next to the dots of a cut; fewer give nothing away
_LONGEST_PIECE = 1000  # what messages are cut to
_SHORTEST_LINE = 8  # of a secret of many lines; messages may hold a single one
_SHORTEST_ANYWHERE = 8  # letters and digits; a shorter secret may be a part of other words
_CUT = re.compile(r"""(?P<before>['"]?\s*)(?:\.\.\.|…)(?P<after>\s*['"]?)""")


class Mask:
    """Puts references in the place of secrets.

    Args:
        secrets: Each with the reference that stands for it, longest first; at least one.
    """

    def __init__(self, secrets: Iterable[tuple[str, str]]) -> None:
        self._references: dict[str, str] = {}
        for secret, reference in secrets:
            for form in _forms(secret):
                self._references.setdefault(form, reference)
        self._forms = sorted(self._references, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(_pattern, self._forms)))

    def __call__(self, text: str) -> str:
        """Write a text without secrets."""
        text = self._pattern.sub(lambda match: self._references[match[0]], text)
        for mark in reversed(list(_CUT.finditer(text))):
            text = self._without_pieces(text, mark)
        return text

    def _without_pieces(self, text: str, mark: re.Match[str]) -> str:
        """Mask the beginning of a secret before a cut, and the end of one after it."""
        for shown in (mark.end("after"), mark.start("after")):
            after = text[shown : shown + _LONGEST_PIECE][::-1]
            length, form = max((_overlap(form[::-1], after), form) for form in self._forms)
            if length:
                text = text[:shown] + self._references[form] + text[shown + length :]
                break
        for shown in (mark.start("before"), mark.end("before")):
            before = text[max(0, shown - _LONGEST_PIECE) : shown]
            length, form = max((_overlap(form, before), form) for form in self._forms)
            if length:
                return text[: shown - length] + self._references[form] + text[shown:]
        return text


def _overlap(form: str, text: str) -> int:
    """Count the characters with which ``form`` begins and ``text`` ends; 0 where they are few."""
    most = min(len(form), len(text))
    return next(
        (num for num in range(most, _SHORTEST_PIECE - 1, -1) if text.endswith(form[:num])), 0
    )


def _pattern(form: str) -> str:
    is_word = len(form) < _SHORTEST_ANYWHERE and form.isalnum()
    return rf"(?<![^\W_]){form}(?![^\W_])" if is_word else re.escape(form)


def _forms(secret: str) -> Iterator[str]:
    """List the ways in which a secret is written."""
    for text in (secret, *(line for line in secret.splitlines() if len(line) >= _SHORTEST_LINE)):
        # with each ' escaped, as in a text that holds both kinds of quotes
        in_quotes = repr("'\"" + text)[4:-1]
        yield text
        yield str(LightkitError(text))  # as errors write what a terminal would obey
        yield repr(text)[1:-1]
        yield in_quotes
        yield in_quotes.replace("\\'", "'")
        yield json.dumps(text)[1:-1]
        yield json.dumps(text, ensure_ascii=False)[1:-1]
        yield text.replace("'", "''")  # YAML's single quotes
        yield html.escape(text)
        yield from (quote(text, safe=""), quote(text), quote_plus(text))
