"""Content-Encoding undone step by step, whatever the pieces it comes in."""

from __future__ import annotations

import contextlib
import gzip
import random
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawl_pipeline.fetching.decoding import BadEncoding, make_decoder


def decode(encoding: list[str], data: bytes, step: int) -> tuple[bytes, bool]:
    """The decoded bytes, and whether the stream was complete."""
    decoder = make_decoder(encoding)
    assert decoder is not None
    found = b""
    for start in range(0, len(data), step):
        for piece, layers_left in decoder.feed(data[start : start + step]):
            assert len(piece) <= 65_536
            found += b"" if layers_left else piece
    return found, decoder.is_complete


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "bare deflate": lambda body: zlib.compress(body)[2:-4],
    "gzip, gzip": lambda body: gzip.compress(gzip.compress(body)),
    "deflate, gzip": lambda body: gzip.compress(zlib.compress(body)),
}


@pytest.mark.parametrize("name", ENCODERS)
@given(body=st.binary(max_size=2000), step=st.integers(1, 50))
def test_any_body_survives_any_split(name: str, body: bytes, step: int) -> None:
    assert decode([name.removeprefix("bare ")], ENCODERS[name](body), step) == (body, True)


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 65_547, 131_072, 1_000_000])
@pytest.mark.parametrize("step", [7, 4096, 10_000_000])
@pytest.mark.parametrize("name", ENCODERS)
def test_a_long_body_of_one_letter_is_decoded_to_the_end(name: str, size: int, step: int) -> None:
    """The last bits of a stream may stand for more output than one step yields: at 65,537 bytes and bare deflate,
    they do. Fails when a full step's input being used up is taken for its end.
    """
    body = b"a" * size
    assert decode([name.removeprefix("bare ")], ENCODERS[name](body), step) == (body, True)


@given(cut=st.integers(1, 200))
def test_a_stream_that_ends_early_is_not_complete(cut: int) -> None:
    squeezed = gzip.compress(random.Random(1).randbytes(1000))
    _, is_complete = decode(["gzip"], squeezed[:-cut], 100)
    assert not is_complete


def test_a_wrong_checksum_is_an_error() -> None:
    squeezed = bytearray(gzip.compress(b"text"))
    squeezed[-8] ^= 1
    with pytest.raises(BadEncoding, match="incorrect data check"):
        decode(["gzip"], bytes(squeezed), 1000)


@given(st.binary(min_size=1, max_size=300))
def test_garbage_is_an_error_or_decodes_and_never_anything_else(data: bytes) -> None:
    with contextlib.suppress(BadEncoding):
        found, _ = decode(["gzip", "deflate"], data, 10)
        assert isinstance(found, bytes)


@pytest.mark.parametrize("values", [[], ["identity"], ["utf-8"], ["", "none"]])
def test_there_may_be_nothing_to_undo(values: list[str]) -> None:
    assert make_decoder(values) is None


@pytest.mark.parametrize("values", [["br"], ["gzip, zstd"], ["gzip", "gzip", "gzip,gzip"]])
def test_what_was_not_asked_for_is_an_error(values: list[str]) -> None:
    with pytest.raises(BadEncoding):
        make_decoder(values)
