"""The proxy that an operator may put between workers and the web.

Behind a proxy the address rule cannot see where a connection ends, so one is used only where the operator says that it
enforces the rule itself. The usual variables (`HTTP_PROXY`, …) are never read: they say nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from crawl_pipeline.errors import UsageError

URL = "CRAWL_PROXY"
PROMISE = "CRAWL_PROXY_ENFORCES_ADDRESS_RULE"


def trusted_proxy(environment: Mapping[str, str]) -> str | None:
    """The proxy's URL, `http://[user:password@]host:port`; None without one. Raises UsageError, which never repeats
    the URL: it may hold a password.
    """
    proxy = environment.get(URL)
    if not proxy:
        return None
    if environment.get(PROMISE) != "yes":
        raise UsageError(
            f"{URL} is set, and a proxy hides which addresses are connected to: set {PROMISE}=yes if the proxy itself "
            f"refuses loopback, private, link-local and metadata addresses, or unset {URL}"
        )
    try:
        parts = urlsplit(proxy)
        is_right = parts.scheme == "http" and parts.hostname and parts.port and proxy.isascii() and proxy.isprintable()
    except ValueError:
        is_right = False
    if not is_right:
        raise UsageError(f"{URL} is no proxy's URL; write it as http://host:port or http://user:password@host:port")
    return proxy
