"""What is sent: the request target exactly as the URL has it, and header lines that cannot break a request apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from crawl_pipeline.fetching.decoding import ACCEPT_ENCODING

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FORBIDDEN = re.compile(r"[\r\n\0]")
_OWNED = frozenset({"accept-encoding", "connection", "content-length", "expect", "host", "te", "transfer-encoding"})


def request_target(url: str, proxy: str | None = None) -> str:
    """What stands in the request line (RFC 9112, 3.2): path and query of an absolute http(s) URL, exactly as written;
    the whole of it where `proxy` is asked for it.
    """
    url = url.partition("#")[0]
    if proxy is not None and url.startswith("http://"):  # for https the proxy gives a tunnel to the site
        return url
    rest = url.partition("://")[2]
    start = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    target = rest[start:]
    return target if target.startswith("/") else "/" + target


def header_lines(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Names and values to send: what the clients accept, then the caller's, less those that the clients own.

    Raises ValueError for a name or value that HTTP/1.1 cannot carry.
    """
    lines = [("Accept-Encoding", ACCEPT_ENCODING)]
    lines += [(name, value.strip()) for name, value in headers.items() if _is_sent(name) and _checked(name, value)]
    return lines


@lru_cache(maxsize=256)
def _is_sent(name: str) -> bool:
    if not _NAME.fullmatch(name):
        raise ValueError(f"the request header {name!r} cannot be sent: a name has letters, digits and hyphens")
    return name.lower() not in _OWNED


def _checked(name: str, value: str) -> bool:
    if _FORBIDDEN.search(value):
        raise ValueError(f"the request header {name} cannot be sent: its value has a line break or NUL")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError as error:
        raise ValueError(f"the request header {name} cannot be sent: its value is not Latin-1 text") from error
    return True
