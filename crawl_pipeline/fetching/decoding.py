"""Content-Encoding undone, in bounded steps and checked to the end.

Both clients hand over the bytes as sent: libcurl's own decoder takes a gzip body that was cut short, or whose
checksum is wrong, for a good one, and refuses gzip of several members.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Sequence

ACCEPT_ENCODING = "gzip, deflate"

_STEP = 65_536  # the most that one step of a decoder yields
_MAX_LAYERS = 3
_GZIP = zlib.MAX_WBITS | 16


class BadEncoding(Exception):
    """The body is not what its Content-Encoding says; the text is a sentence."""


class Inflater:
    """One gzip or deflate layer. Yields pieces of at most 64 KiB: whoever reads them decides when it is enough."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._is_gzip = coding == "gzip"
        self._engine = zlib.decompressobj(_GZIP)
        self._start = b""  # of a deflate stream, until its two bytes tell zlib from bare
        self._has_started = self._is_gzip
        self._has_input = False
        self._is_padding = False  # after the last member: bytes that say nothing

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What these bytes decode to. Raises BadEncoding."""
        self._has_input = self._has_input or bool(data)
        if not self._has_started:
            data = self._begin_deflate(data)
        while data and not self._is_padding:
            if self._engine.eof and not self._next_member(data):
                return
            data = yield from self._inflate(data)

    @property
    def is_complete(self) -> bool:
        """Whether the stream reached its end, checksum included, or never began (an empty body)."""
        return self._engine.eof or not self._has_input

    def _inflate(self, data: bytes) -> Generator[bytes, None, bytes]:
        while True:
            try:
                piece = self._engine.decompress(data, _STEP)
            except zlib.error as error:
                raise BadEncoding(f"the body is not valid {self._coding}: {error}") from error
            if piece:
                yield piece
            if self._engine.eof:
                return self._engine.unused_data
            data = self._engine.unconsumed_tail
            # A full piece may leave output inside zlib though its input is used up.
            if not data and len(piece) < _STEP:
                return b""

    def _begin_deflate(self, data: bytes) -> bytes:
        # "deflate" is a zlib stream (RFC 9110, 8.4.1.2); a good many servers send it bare.
        self._start += data
        if len(self._start) < 2:
            return b""
        self._has_started = True
        first, second = self._start[:2]
        is_zlib = first & 15 == 8 and (first << 8 | second) % 31 == 0
        self._engine = zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
        return self._start

    def _next_member(self, data: bytes) -> bool:
        if self._is_gzip and data[:1] == b"\x1f":
            self._engine = zlib.decompressobj(_GZIP)
            return True
        self._is_padding = True
        return False


class Decoder:
    """Every layer of a Content-Encoding, the outermost first."""

    def __init__(self, codings: Sequence[str]) -> None:
        self._layers = [Inflater(coding) for coding in reversed(codings)]

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Pieces with the layer they left (0: wholly decoded), each as soon as it is there. Raises BadEncoding.

        Inner pieces are reported too, for they may decode to nothing: a bomb's work is bounded as its output is.
        """
        return self._through(data, 0)

    def _through(self, data: bytes, depth: int) -> Iterator[tuple[bytes, int]]:
        left = len(self._layers) - depth - 1
        for piece in self._layers[depth].feed(data):
            yield piece, left
            if left:
                yield from self._through(piece, depth + 1)

    @property
    def is_complete(self) -> bool:
        """Whether every layer reached its end."""
        return all(layer.is_complete for layer in self._layers)


def make_decoder(content_encoding: Sequence[str]) -> Decoder | None:
    """The decoder for the values of Content-Encoding; None when there is nothing to undo.

    Raises BadEncoding for a compression that was not asked for. Other unknown words (servers write "utf-8" there)
    are taken as they are meant: nothing.
    """
    codings = []
    for word in ",".join(content_encoding).lower().split(","):
        coding = word.strip().removeprefix("x-")
        if coding in ("gzip", "deflate"):
            codings.append(coding)
        elif coding in ("br", "zstd", "compress", "dcb", "dcz"):
            raise BadEncoding(f"Content-Encoding {coding} was sent; {ACCEPT_ENCODING} was asked for")
    if len(codings) > _MAX_LAYERS:
        raise BadEncoding(f"Content-Encoding has {len(codings)} layers; at most {_MAX_LAYERS} are undone")
    return Decoder(codings) if codings else None
