"""One exchange while it comes in: what has arrived, and whether more of it is wanted.

Both clients feed it and obey it, so that size limits, the type rule and the reading of encodings are one piece of
code. It knows nothing of sockets; time is handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from crawl_pipeline.domain.pages import Exchange, FetchFailure, FetchRequest
from crawl_pipeline.fetching.decoding import BadEncoding, Decoder, make_decoder
from crawl_pipeline.fetching.media_types import media_type
from crawl_pipeline.fetching.sniffing import SNIFFED_BYTES, is_open, refusal

_CONTROLS = {code: " " for code in (*range(9), *range(10, 32), 127)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What every exchange is held to, beside its own request's limits."""

    head_bytes: int = 256 * 1024  # of all header blocks, interim ones included
    head_lines: int = 1000  # of the final header block
    other_body_bytes: int = 64 * 1024  # of the body of an answer that is not 200
    low_speed_bytes: int = 100  # a second, on the wire, once the head is there …
    low_speed_for: float = 15.0  # … averaged over this many seconds


class Reception:
    """Collects one exchange. `take_…` return False when the transfer is to be ended at once.

    Once ended here, the verdict stands: whatever the client then reports is only the echo.
    """

    __slots__ = (
        "_body",
        "_body_bytes",
        "_decoder",
        "_head_bytes",
        "_inner_bytes",
        "_is_sniffed",
        "_limits",
        "_lines",
        "_marked_at",
        "_marked_bytes",
        "_media_type",
        "_wire_bytes",
        "address",
        "detail",
        "failure",
        "has_head",
        "headers",
        "http_version",
        "is_ended",
        "request",
        "started",
        "started_at",
        "status",
        "type_refused",
    )

    def __init__(self, request: FetchRequest, limits: Limits, *, started_at: datetime, started: float) -> None:
        self.request = request
        self.started_at = started_at
        self.started = started  # on the monotonic clock
        self.status: int | None = None
        self.http_version: str | None = None
        self.headers: tuple[tuple[str, str], ...] = ()
        self.address: str | None = None
        self.has_head = False  # the final header block is complete
        self.is_ended = False
        self.failure: FetchFailure | None = None
        self.detail: str | None = None
        self.type_refused = False
        self._limits = limits
        self._lines: list[bytes] = []
        self._head_bytes = 0
        self._decoder: Decoder | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._wire_bytes = 0
        self._inner_bytes = 0
        self._media_type: str | None = None
        self._is_sniffed = True  # nothing to be found out from the body's first bytes
        self._marked_at = 0.0
        self._marked_bytes = 0

    def end(self, failure: FetchFailure | None, detail: str | None) -> bool:
        """End the transfer with this verdict; False, for a `take_…` to return. The first verdict stands."""
        if not self.is_ended:
            self.is_ended = True
            self.failure = failure
            self.detail = detail
        return False

    # The head

    def restart(self) -> None:
        """A further request is sent for this exchange (an auth plugin answers a challenge): only its answer counts."""
        self.has_head = False
        self.status = None
        self._lines.clear()
        self._decoder = None
        self._is_sniffed = True
        self._wire_bytes = self._marked_bytes = 0

    def take_line(self, line: bytes, now: float) -> bool:
        """Take one line of a header block, the status line first, an empty line last; trailers are passed over."""
        self._head_bytes += len(line)
        if self._head_bytes > self._limits.head_bytes:
            return self.end(FetchFailure.PROTOCOL, f"the headers are longer than {self._limits.head_bytes:,} bytes")
        if self.has_head:
            return True
        if len(line) > 2:
            self._take_unfolded(line)
            return True
        lines, self._lines = self._lines, []
        version, status = _status_line(lines[0] if lines else b"")
        if status is None:
            return self.end(FetchFailure.PROTOCOL, "the answer does not begin with an HTTP status line")
        if 100 <= status < 200 and status != 101:
            return True
        if fault := _fault(lines):
            return self.end(FetchFailure.PROTOCOL, fault)
        headers = tuple([_header(line) if len(line) < 200 else _header.__wrapped__(line) for line in lines[1:]])
        return self.take_head(http_version=version, status=status, headers=headers, now=now)

    def _take_unfolded(self, line: bytes) -> None:
        if line[0] in b" \t" and len(self._lines) > 1:  # obsolete line folding (RFC 9112, 5.2)
            self._lines[-1] = self._lines[-1].rstrip() + b" " + line.lstrip()
        else:
            self._lines.append(line)

    def take_head(self, *, http_version: str, status: int, headers: tuple[tuple[str, str], ...], now: float) -> bool:
        """Take the final header block as a whole."""
        self.has_head = True
        self.http_version = http_version
        self.status = status
        self.headers = headers
        self._marked_at = now
        if len(headers) > self._limits.head_lines:
            return self.end(FetchFailure.PROTOCOL, f"the answer has {len(headers)} header lines")
        if status != 200:
            return self._prepare_decoder()
        found = self._media_type = media_type(tuple(self._values("content-type")))
        wanted = self.request.types
        if wanted is not None:
            if found is not None and found not in wanted and not is_open(found, wanted):
                return self._refuse_type(f"Content-Type is {found}: not in fetch.types")
            self._is_sniffed = False
        return self._accepts_length() and self._prepare_decoder()

    def _refuse_type(self, detail: str) -> bool:
        self.type_refused = True
        return self.end(None, detail)

    def _accepts_length(self) -> bool:
        """Lengths must agree (RFC 9110, 8.6) and be within the limit; with Transfer-Encoding they do not count."""
        lengths = {length.strip() for value in self._values("content-length") for length in value.split(",")}
        if not lengths or self._values("transfer-encoding"):
            return True
        length = lengths.pop()
        if lengths or not length.isdecimal():
            return self.end(FetchFailure.PROTOCOL, "the Content-Length is not one number")
        limit = self._encoded_limit if self._values("content-encoding") else self._body_limit
        is_within = self.request.keeps_beginning or int(length[:18]) <= limit
        return is_within or self._too_large(f"Content-Length is {length[:18]}")

    def _values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def _prepare_decoder(self) -> bool:
        values = self._values("content-encoding")
        if not values:
            return True
        try:
            self._decoder = make_decoder(values)
        except BadEncoding as error:
            return self.end(FetchFailure.BAD_ENCODING, str(error))
        return True

    # The body

    def take_body(self, chunk: bytes) -> bool:
        """Take bytes of the body as sent (without transfer coding), decode them, and hold them to the limits."""
        self._wire_bytes += len(chunk)
        if self._decoder is None:
            return self._keep(chunk)
        if self._wire_bytes > self._encoded_limit:
            return self._over_limit()
        try:
            for piece, layers_left in self._decoder.feed(chunk):
                if not (self._pass_inner(piece) if layers_left else self._keep(piece)):
                    return False
        except BadEncoding as error:
            return self.end(FetchFailure.BAD_ENCODING, str(error))
        return True

    @property
    def _body_limit(self) -> int:
        limit = self.request.max_bytes
        return limit if self.status == 200 else min(limit, self._limits.other_body_bytes)

    @property
    def _encoded_limit(self) -> int:
        # What cannot be squeezed grows a little; what decodes to nothing must end all the same.
        return self._body_limit + self._body_limit // 64 + 1024

    def _keep(self, piece: bytes) -> bool:
        self._body_bytes += len(piece)
        if self._body_bytes > self._body_limit:
            self._body.append(piece[: len(piece) - (self._body_bytes - self._body_limit)])
            return self._over_limit()
        self._body.append(piece)
        return self._is_sniffed or self._body_bytes < SNIFFED_BYTES or self._sniff()

    def _sniff(self) -> bool:
        """Judge the body's kind by its first bytes, once: what is no text, or no HTML, is not read to its end."""
        self._is_sniffed = True
        head = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        detail = refusal(self._media_type, head, self.request.types or ())
        return detail is None or self._refuse_type(detail)

    def _pass_inner(self, piece: bytes) -> bool:
        self._inner_bytes += len(piece)
        return self._inner_bytes <= self._encoded_limit or self._over_limit()

    def _over_limit(self) -> bool:
        if self.status != 200 or self.request.keeps_beginning:
            return self.end(None, None)
        return self._too_large("the body goes on")

    def _too_large(self, found: str) -> bool:
        return self.end(FetchFailure.TOO_LARGE, f"{found}; fetch.max_bytes is {self.request.max_bytes:,}")

    # The clock

    def is_stalled(self, now: float) -> bool:
        """Whether the body has come in too slowly over the last span; a span that was long enough begins anew."""
        if not self.has_head or now - self._marked_at < self._limits.low_speed_for:
            return False
        is_slow = self._wire_bytes - self._marked_bytes < self._limits.low_speed_bytes * (now - self._marked_at)
        self._marked_at, self._marked_bytes = now, self._wire_bytes
        return is_slow

    def stall(self) -> str:
        """The sentence for people about a stalled body."""
        return f"less than {self._limits.low_speed_bytes} bytes a second for {self._limits.low_speed_for:g} s"

    # The result

    def exchange(self, failure: FetchFailure | None, detail: str | None, *, now: float) -> Exchange:
        """What came of it, given what the client says. The verdict of `end` stands before the client's.

        An answer other than 200 is complete with its head: a redirect or a 404 whose body breaks is what it says.
        """
        if not self.is_ended:
            failure, detail = self._client_verdict(failure, detail)
            if failure is None and not self._is_sniffed and self.has_head:
                self._sniff()  # a body that was shorter than what is looked at
        if self.is_ended:
            failure, detail = self.failure, self.detail
        if failure not in (None, FetchFailure.ABORTED) and self.has_head and self.status != 200:
            failure = None
        keeps_body = failure is None and not self.type_refused
        body = b"".join(self._body) if keeps_body else b""
        self._body.clear()
        return Exchange(
            request=self.request,
            started_at=self.started_at,
            elapsed=now - self.started,
            status=self.status,
            headers=self.headers,
            body=body,
            failure=failure,
            detail=detail,
            type_refused=self.type_refused,
            http_version=self.http_version,
            address=self.address,
        )

    def _client_verdict(
        self, failure: FetchFailure | None, detail: str | None
    ) -> tuple[FetchFailure | None, str | None]:
        if failure is not None:
            return failure, detail
        if not self.has_head:
            return FetchFailure.TRUNCATED, "the connection was closed within the headers"
        if self._decoder is not None and not self._decoder.is_complete:
            return FetchFailure.TRUNCATED, "the compressed body ends too early"
        return None, detail


def _status_line(line: bytes) -> tuple[str, int | None]:
    protocol, _, rest = line.partition(b" ")
    code = rest.strip()[:3]
    if not protocol.startswith(b"HTTP/") or not code.isdigit():
        return "", None
    return protocol[5:].decode("latin-1"), int(code)


def _fault(lines: list[bytes]) -> str | None:
    """What makes these lines no header block, as libcurl judges it too."""
    block = b"".join(lines)
    if b"\0" in block or block.count(b"\r") > len(lines):
        return "the headers hold a control character"
    return None if all(b":" in line for line in lines[1:]) else "a header line has no colon"


@lru_cache(maxsize=1024)
def _header(line: bytes) -> tuple[str, str]:
    name, _, value = line.decode("latin-1").partition(":")
    return name.strip().lower(), clean_value(value)


def clean_value(value: str) -> str:
    """A header value as it may be stored and sent back: trimmed, control characters made spaces (RFC 9110, 5.5)."""
    value = value.strip(" \t\r\n")
    return value if value.isprintable() else value.translate(_CONTROLS)
