"""What the first bytes of a body are, whatever its Content-Type says: the small part of WHATWG MIME Sniffing.

Two questions: is this text at all, and does a body without a type of its own begin as HTML does.
"""

from __future__ import annotations

import re
from collections.abc import Collection

SNIFFED_BYTES = 1445  # the standard's resource header: no more is looked at

HTML = frozenset(("text/html", "application/xhtml+xml"))
# What servers say of a file whose type they do not know. text/plain is not among them: that is said on purpose.
_SAYS_NOTHING = frozenset(
    (
        "application/octet-stream",
        "binary/octet-stream",
        "unknown/unknown",
        "application/unknown",
        "application/x-unknown",
    )
)
_TEXTUAL = re.compile(r"text/.*|application/(?:.*\+)?(?:xml|json)|application/(?:x-)?javascript")

# Offset, bytes, media type, name for people. All hold a byte that no text begins with, or a whole word.
_SIGNATURES: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"%PDF-", "application/pdf", "a PDF document"),
    (0, b"%!PS-Adobe-", "application/postscript", "a PostScript document"),
    (0, b"PK\x03\x04", "application/zip", "a ZIP archive"),
    (0, b"PK\x05\x06", "application/zip", "a ZIP archive"),
    (0, b"\x1f\x8b\x08", "application/gzip", "gzip data"),
    (0, b"\x28\xb5\x2f\xfd", "application/zstd", "Zstandard data"),
    (0, b"BZh91AY&SY", "application/x-bzip2", "bzip2 data"),
    (0, b"\xfd7zXZ\x00", "application/x-xz", "xz data"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed", "a 7z archive"),
    (0, b"Rar!\x1a\x07", "application/x-rar-compressed", "a RAR archive"),
    (257, b"ustar", "application/x-tar", "a tar archive"),
    (0, b"\x89PNG\r\n\x1a\n", "image/png", "a PNG image"),
    (0, b"\xff\xd8\xff", "image/jpeg", "a JPEG image"),
    (0, b"GIF87a", "image/gif", "a GIF image"),
    (0, b"GIF89a", "image/gif", "a GIF image"),
    (8, b"WEBPVP", "image/webp", "a WebP image"),
    (4, b"ftypavif", "image/avif", "an AVIF image"),
    (0, b"II*\x00", "image/tiff", "a TIFF image"),
    (0, b"MM\x00*", "image/tiff", "a TIFF image"),
    (0, b"\x00\x00\x01\x00", "image/x-icon", "an icon"),
    (4, b"ftyp", "video/mp4", "an MP4 video"),
    (0, b"\x1aE\xdf\xa3", "video/webm", "a WebM video"),
    (0, b"OggS\x00", "application/ogg", "Ogg sound or video"),
    (0, b"ID3\x02", "audio/mpeg", "MP3 sound"),
    (0, b"ID3\x03", "audio/mpeg", "MP3 sound"),
    (0, b"ID3\x04", "audio/mpeg", "MP3 sound"),
    (0, b"fLaC\x00", "audio/flac", "FLAC sound"),
    (8, b"WAVEfmt ", "audio/wave", "WAVE sound"),
    (8, b"AVI LIST", "video/avi", "an AVI video"),
    (0, b"MThd\x00\x00\x00\x06", "audio/midi", "MIDI sound"),
    (0, b"wOFF", "font/woff", "a WOFF font"),
    (0, b"wOF2", "font/woff2", "a WOFF2 font"),
    (0, b"OTTO\x00", "font/otf", "an OpenType font"),
    (0, b"\x00\x01\x00\x00\x00", "font/ttf", "a TrueType font"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage", "an Office document"),
    (0, b"SQLite format 3\x00", "application/vnd.sqlite3", "an SQLite database"),
    (0, b"\x00asm", "application/wasm", "WebAssembly"),
    (0, b"\x7fELF", "application/x-executable", "a program"),
)
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
# A tag is ended by white space or `>`; before it, white space, an XML declaration and comments may stand.
_BEGINS_AS_HTML = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--(?:(?!-->).)*-->\s*)*"
    rb"<(?:!doctype\s+html|html|head|body|title|meta|link|script|style|iframe|h1|div|table|font|br|p|a|b)[\s/>]",
    re.IGNORECASE | re.DOTALL,
)


def is_open(media_type: str, wanted: Collection[str]) -> bool:
    """Whether a type that is not wanted leaves open what the body is, and HTML is wanted."""
    return media_type in _SAYS_NOTHING and not HTML.isdisjoint(wanted)


def binary_kind(head: bytes) -> tuple[str, str] | None:
    """The media type and the name of a well-known format that is no text."""
    for offset, signature, media_type, name in _SIGNATURES:
        if head.startswith(signature, offset):
            return media_type, name
    return None


def begins_as_html(head: bytes) -> bool:
    """Whether bytes clearly are HTML."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        head = head[2:].replace(b"\0", b"")
    return _BEGINS_AS_HTML.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


def refusal(media_type: str | None, head: bytes, wanted: Collection[str]) -> str | None:
    """Why a body is not taken whose type is wanted, missing or open: a sentence for people; None where it is taken.

    Without a Content-Type all text is taken; what a server calls mere bytes, where it begins as HTML does.
    """
    head = head[:SNIFFED_BYTES]
    declared = f"Content-Type is {media_type}" if media_type else "there is no Content-Type"
    if media_type is None or _TEXTUAL.fullmatch(media_type):
        kind = binary_kind(head)
        if kind is not None:
            return None if kind[0] in wanted else f"{declared}, but the body is {kind[1]}"
        is_binary = media_type is None and not head.startswith(_MARKS) and _BINARY.search(head) is not None
        return f"{declared}, and the body is no text" if is_binary else None
    if media_type in wanted or begins_as_html(head):
        return None
    kind = binary_kind(head)
    found = f"the body is {kind[1]}" if kind else "the body does not begin as HTML does"
    return f"{declared}: not in fetch.types, and {found}"
