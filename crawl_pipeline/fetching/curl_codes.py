"""What libcurl's result codes mean to a crawl."""

from __future__ import annotations

import pycurl

from crawl_pipeline.domain.pages import FetchFailure

_FAILURES = {
    pycurl.E_OPERATION_TIMEDOUT: FetchFailure.TIMEOUT,
    pycurl.E_COULDNT_RESOLVE_HOST: FetchFailure.CONNECTION,
    pycurl.E_COULDNT_CONNECT: FetchFailure.CONNECTION,
    pycurl.E_INTERFACE_FAILED: FetchFailure.CONNECTION,
    pycurl.E_SEND_ERROR: FetchFailure.CONNECTION,
    pycurl.E_RECV_ERROR: FetchFailure.CONNECTION,
    pycurl.E_GOT_NOTHING: FetchFailure.CONNECTION,
    # A host name that libcurl will not look up is one that no resolver knows either.
    pycurl.E_URL_MALFORMAT: FetchFailure.CONNECTION,
    pycurl.E_SSL_CONNECT_ERROR: FetchFailure.TLS,
    pycurl.E_PEER_FAILED_VERIFICATION: FetchFailure.TLS,
    pycurl.E_SSL_CIPHER: FetchFailure.TLS,
    pycurl.E_SSL_CACERT_BADFILE: FetchFailure.TLS,
    pycurl.E_SSL_CERTPROBLEM: FetchFailure.TLS,
    pycurl.E_SSL_ISSUER_ERROR: FetchFailure.TLS,
    pycurl.E_SSL_SHUTDOWN_FAILED: FetchFailure.TLS,
    pycurl.E_PARTIAL_FILE: FetchFailure.TRUNCATED,
    pycurl.E_BAD_CONTENT_ENCODING: FetchFailure.BAD_ENCODING,
}

# Codes that mean "cut short" once some of the answer is there, and something else before.
_CUT_SHORT = frozenset({pycurl.E_RECV_ERROR, pycurl.E_HTTP2, 92, pycurl.E_SEND_ERROR})  # 92: CURLE_HTTP2_STREAM


def failure_of(code: int, *, has_begun: bool) -> FetchFailure:
    """The failure for a result code other than OK; `has_begun`: a complete final header block was received."""
    if has_begun and code in _CUT_SHORT:
        return FetchFailure.TRUNCATED
    # Whatever else libcurl finds wrong (a status line that is none, a header without a colon, two lengths, a broken
    # HTTP/2 frame) is an answer that is not HTTP.
    return _FAILURES.get(code, FetchFailure.PROTOCOL)
