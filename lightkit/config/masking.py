"""Secrets found again in text that others have written: raw, escaped, and where a message was cut."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from lightkit.errors import LightkitError

__all__ = ["Mask"]

_SHORTEST_PIECE = 4  # characters of a secret beside the dots of a cut; fewer give nothing away
_LONGEST_PIECE = 1000  # what messages are cut to
_SHORTEST_LINE = 8  # of a secret of many lines; messages may hold a single one
_SHORTEST_ANYWHERE = 8  # letters and digits; a shorter secret may be a part of other words
_CUT = re.compile(r"""(?P<before>['"]?\s*)(?:\.\.\.|…)(?P<after>\s*['"]?)""")


class Mask:
    """Puts references in the place of secrets.

    Args:
        secrets: Each with the reference that stands for it, longest first.
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
        if not self._references:
            return text
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
    return next((num for num in range(most, _SHORTEST_PIECE - 1, -1) if text.endswith(form[:num])), 0)


def _pattern(form: str) -> str:
    is_word = len(form) < _SHORTEST_ANYWHERE and form.isalnum()
    return rf"(?<![^\W_]){form}(?![^\W_])" if is_word else re.escape(form)


def _forms(secret: str) -> Iterator[str]:
    """List the ways in which a secret is written."""
    for text in (secret, *(line for line in secret.splitlines() if len(line) >= _SHORTEST_LINE)):
        in_quotes = repr("'\"" + text)[4:-1]  # with each ' escaped, as in a text that holds both kinds of quotes
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
