"""Errors of MLflow's first answer: which of them end by waiting.

So the same command is tried again. No torch.
"""

from __future__ import annotations

import re

from lightkit.errors import exception_chain
from lightkit.loggers.mlflow_address import Address

STORAGE_CLIENTS = ("boto3", "botocore", "azure", "google")
"""Packages by which MLflow reaches artifacts in S3 and the like; their errors have no common base
class."""
_WAITS = {408, 425, 429}  # 4xx that end: a slow request, and limits
_REFUSED_LOGINS = (  # PostgreSQL, MySQL
    "authentication failed|access denied|does not exist|unknown database"
)
_OTHER_SCHEMA = "out-of-date database schema|can't locate revision"  # MLflow's and Alembic's words


def can_pass(error: Exception, address: Address) -> bool:
    """Return whether the same command can succeed later though nothing is changed.

    Args:
        error: Of MLflow, its connection, its database or its storage.
        address: Address of MLflow.
    """
    from mlflow.exceptions import InvalidUrlException  # 2 s
    from requests import exceptions as of_requests
    from sqlalchemy import exc as of_database

    chain = list(exception_chain(error))
    if address.database is not None:
        return any(is_busy(each) for each in chain)

    # Python's and MLflow's own refusals: a module that is not installed, an address that is none, a
    # certificate
    never = (
        FileNotFoundError,
        ModuleNotFoundError,
        InvalidUrlException,
        of_requests.InvalidSchema,
        of_requests.InvalidURL,
        of_requests.MissingSchema,
        of_requests.SSLError,
        of_requests.TooManyRedirects,
    )
    if any(isinstance(each, never) for each in chain) or re.search(
        _OTHER_SCHEMA, str(error), re.IGNORECASE
    ):
        return False

    if type(error).__module__.partition(".")[0] in STORAGE_CLIENTS:
        return re.search("Connect|Timeout|Unavailable", type(error).__name__) is not None
    if isinstance(error, of_database.SQLAlchemyError):
        connects = (
            of_database.OperationalError,
            of_database.InterfaceError,
            of_database.TimeoutError,
        )
        return isinstance(error, connects) and not re.search(
            _REFUSED_LOGINS, str(error), re.IGNORECASE
        )

    # A server that answers: 5xx is its own failure, 4xx a refusal of this request.
    status = find_status(error)
    return isinstance(error, OSError) if status is None else status >= 500 or status in _WAITS


def find_status(error: Exception) -> int | None:
    """Return the HTTP status with which a server has refused; None of another error."""
    from mlflow.exceptions import MlflowException  # 2 s

    if isinstance(error, MlflowException):
        return int(error.get_http_status_code())  # type: ignore[no-untyped-call]
    response = getattr(error, "response", None)  # of an HTTPError of requests
    return None if response is None else int(response.status_code)


def is_busy(error: BaseException) -> bool:
    """Return whether a local database is locked by another process, or its disk is full.

    Both end.
    """
    return re.search("locked|disk is full|No space", str(error)) is not None
