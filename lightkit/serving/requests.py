"""Content of a request to the server: pictures as bytes, or rows of a table or of numbers.

Any other is refused.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Request
from starlette.exceptions import HTTPException as BaseHTTPException
from starlette.requests import ClientDisconnect

from lightkit.config.bounds import is_number

_MULTIPART = "multipart/form-data"
_JSON = "application/json"
_FIELD = "image"
_NUM_SHOWN = 3  # columns in the words of an error
_EXPECTED_IMAGES = (
    "expected a picture: as the field `image` of a form, such as curl -F image=@photo.jpg, which"
    " may come several times, or as the body itself, with its type,"
    " such as Content-Type: image/jpeg"
)
_EXPECTED_ROWS = 'expected Content-Type: application/json and {"rows": [[1.5, 2.0], ...]}'


@dataclass(frozen=True)
class Item:
    """One sample of a request.

    Args:
        name: Of the file, as the client sent it; the number of a row.
        content: Bytes of a picture, the numbers of a row, or the cells of a row of a table by their
            columns.
    """

    name: str
    content: bytes | list[float] | dict[str, Any]


@dataclass(frozen=True)
class RequestRules:
    """Requests that the server accepts.

    Args:
        max_bytes: Size of a request's body.
        row_length: Numbers of a row; None for a model of pictures.
        columns: Columns of a row, of a model that takes rows of a table; None for any other.
    """

    max_bytes: int
    row_length: int | None = None
    columns: tuple[str, ...] | None = None


async def read_items(request: Request) -> list[Item]:
    """Read the samples of a request, by the rules in the application's state.

    Raises:
        HTTPException: With a status from 400 to 499 and the reason, if it holds something else.
    """
    rules: RequestRules = request.app.state.rules
    _check_announced_size(request, rules)
    try:
        if rules.columns is not None:
            return await _read_records(request, rules.columns)
        if rules.row_length is not None:
            return await _read_rows(request, rules.row_length)
        return await _read_pictures(request, rules)
    except ClientDisconnect as error:
        raise HTTPException(400, "the client left before its request was complete") from error
    except HTTPException as error:
        if error.status_code == 413:
            raise _too_large(rules) from error
        raise


def _check_announced_size(request: Request, rules: RequestRules) -> None:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > rules.max_bytes:
        raise _too_large(rules)


def _too_large(rules: RequestRules) -> HTTPException:
    limit = f"{rules.max_bytes / 1e6:g} MB"
    return HTTPException(
        413, f"the request is larger than {limit}; --max-request of lightkit serve sets the limit"
    )


async def _read_pictures(request: Request, rules: RequestRules) -> list[Item]:
    content_type = _media_type(request)
    if content_type == _MULTIPART:
        return await _read_form(request, rules)
    if not content_type.startswith("image/") and content_type != "application/octet-stream":
        found = content_type or "no Content-Type"
        raise HTTPException(415, f"got {found}; {_EXPECTED_IMAGES}")
    body = await request.body()
    if not body:
        raise HTTPException(400, f"the body is empty; {_EXPECTED_IMAGES}")
    return [Item("body", body)]


async def _read_form(request: Request, rules: RequestRules) -> list[Item]:
    try:
        # a picture in a field without a file name is text to the parser, which limits its size
        form = await request.form(max_part_size=rules.max_bytes)
    except BaseHTTPException as error:  # Starlette's, of which FastAPI's is a subclass
        if error.status_code == 413:
            raise
        raise HTTPException(
            400, f"the form cannot be read ({error.detail}); {_EXPECTED_IMAGES}"
        ) from error
    items = []
    for value in form.getlist(_FIELD):
        if isinstance(value, str):
            raise HTTPException(400, f"the field `image` is text, and no file; {_EXPECTED_IMAGES}")
        content = await value.read()
        name = value.filename or _FIELD
        if not content:
            raise HTTPException(400, f"{name} is empty; {_EXPECTED_IMAGES}")
        items.append(Item(name, content))
    if not items:
        fields = ", ".join(sorted(form)) or "none"
        raise HTTPException(
            400, f"the form has no field `image` (its fields: {fields}); {_EXPECTED_IMAGES}"
        )
    return items


async def _read_json(request: Request, expected: str) -> list[Any]:
    """Read the list of rows of a body of JSON."""
    content_type = _media_type(request)
    if content_type != _JSON:
        raise HTTPException(415, f"got {content_type or 'no Content-Type'}; {expected}")
    body = await request.body()
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON ({error}); {expected}") from error
    rows = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not rows:
        raise HTTPException(400, f"there are no rows; {expected}")
    return rows


async def _read_records(request: Request, columns: Sequence[str]) -> list[Item]:
    """Read rows of a table: objects with a cell for each column, null where it is missing."""
    cells = ", ".join(f"{json.dumps(name)}: ..." for name in columns[:_NUM_SHOWN])
    more = ", ..." if len(columns) > _NUM_SHOWN else ""
    rows = await _read_json(
        request, f'expected Content-Type: application/json and {{"rows": [{{{cells}{more}}}, ...]}}'
    )
    for at, row in enumerate(rows):
        if not isinstance(row, dict):
            raise HTTPException(422, f"rows[{at}]: expected an object, got {type(row).__name__}")
        missing = [name for name in columns if name not in row]
        if missing:
            raise HTTPException(
                422, f"rows[{at}]: there is no {missing[0]!r}; write null where it is missing"
            )
        for name in columns:
            if isinstance(row[name], list | dict):
                found = json.dumps(row[name])[:40]
                raise HTTPException(
                    422,
                    f"rows[{at}]: column {name!r} has {found}, expected a"
                    " text, a number, a boolean or null",
                )
    return [Item(str(at), row) for at, row in enumerate(rows)]


async def _read_rows(request: Request, length: int) -> list[Item]:
    rows = await _read_json(request, _EXPECTED_ROWS)
    return [Item(str(at), _read_row(at, row, length)) for at, row in enumerate(rows)]


def _read_row(at: int, row: Any, length: int) -> list[float]:
    if not isinstance(row, list) or len(row) != length:
        found = f"{len(row)} numbers" if isinstance(row, list) else type(row).__name__
        raise HTTPException(422, f"rows[{at}]: expected a list of {length} numbers, got {found}")
    for column, value in enumerate(row):
        if not is_number(value):
            raise HTTPException(
                422, f"rows[{at}][{column}]: expected a finite number, got {json.dumps(value)[:40]}"
            )
    return row


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
