"""What an error of the database calls for: again at once, again later, never, or a mend of our own statement."""

from __future__ import annotations

import re
from enum import Enum, auto

import psycopg
from sqlalchemy.exc import DBAPIError

_CONFLICTS = {"40001", "40P01"}  # serialization_failure, deadlock_detected
_TIMEOUTS = {"55P03", "57014"}  # lock_timeout, statement_timeout
_OUTAGES = {
    "25P03",  # idle_in_transaction_session_timeout: the server has ended the session
    *_TIMEOUTS,
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now
    "58030",  # io_error
}
_OUTAGE_CLASSES = {"08", "53"}  # connection exceptions; insufficient resources (disk, memory, connections)
# A refused connection has no SQLSTATE. These words mean that waiting will not help; in other languages we wait in vain.
_REFUSED_FOR_GOOD = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|(database|role) \".*\" does not exist"
)


class Failure(Enum):
    """What an error of the database calls for."""

    CONFLICT = auto()  # two transactions met: again at once
    OUTAGE = auto()  # not reachable, not answering, not able: again later
    REFUSED = auto()  # will not let us in, now or later
    OURS = auto()  # the statement is wrong


def classify(error: DBAPIError | psycopg.Error) -> Failure:
    """What the error calls for, by its SQLSTATE; without one, an OperationalError is about the connection."""
    root = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(root, psycopg.Error):
        return Failure.OURS
    state = root.sqlstate
    if state in _CONFLICTS:
        return Failure.CONFLICT
    if state in _OUTAGES or (state or "")[:2] in _OUTAGE_CLASSES:
        return Failure.OUTAGE
    if state is None and isinstance(root, psycopg.OperationalError):
        return Failure.REFUSED if _REFUSED_FOR_GOOD.search(str(root)) else Failure.OUTAGE
    return Failure.OURS


def has_timed_out(error: BaseException) -> bool:
    """Whether the server ended a statement for its length or its wait for a lock: it runs, and is too slow."""
    root = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(root, psycopg.Error) and root.sqlstate in _TIMEOUTS


def one_line(error: BaseException) -> str:
    """The driver's own words on one line."""
    root = error.orig if isinstance(error, DBAPIError) else error
    return " ".join(str(root).split())
