"""Encodings of text: conversion to UTF-8, and advice on bytes that are not valid."""

import codecs
import unicodedata

from graphformers.graph.settings import ImportSettings

# Text around an invalid byte that a message shows as another encoding has it.
SHOWN_BYTES = 24
# An encoding that many programs for Windows write, and how people call it.
USUAL, USUAL_NAME = "cp1252", "Windows-1252"
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Bytes that are rare in text of any encoding but UTF-16 and UTF-32.
CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1a\x1b"))
# Never part of UTF-8: stands for bytes that are not valid in another encoding.
INVALID = b"\xff"


def _mark(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replaces what cannot be converted by INVALID, so that the reader reports its line."""
    if isinstance(error, UnicodeDecodeError):
        return "\udcff", error.end
    assert isinstance(error, UnicodeEncodeError)
    return INVALID, error.end


codecs.register_error("graphformers.invalid", _mark)


class Converter:
    """Converts text to UTF-8, piece by piece. What is not valid becomes INVALID.

    Examples:
        >>> Converter("cp1252").convert(b"caf\\xe9", final=True)
        b'caf\\xc3\\xa9'
    """

    def __init__(self, encoding: str) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)("graphformers.invalid")

    def convert(self, data: bytes, *, final: bool) -> bytes:
        """The next piece as UTF-8; the last one is `final`."""
        return self._decoder.decode(data, final).encode("utf-8", "graphformers.invalid")


def guess_encoding(head: bytes) -> str | None:
    """The encoding of text that begins with `head`, if it is UTF-16 or UTF-32; else None."""
    for mark, name in BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return name
    # Latin letters have a zero byte in UTF-16. Text has no other zero bytes.
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if even + odd > len(head) // 4:
        return "utf-16-be" if even > odd else "utf-16-le"
    return None


def is_text(data: bytes, encoding: str = "utf-8") -> bool:
    """Whether bytes are the beginning of text, without control characters, in an encoding."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(data)
    except UnicodeError:
        return False
    return not any(unicodedata.category(char) == "Cc" for char in set(text) - set("\t\n\v\f\r"))


def is_binary(head: bytes) -> bool:
    """Whether bytes are neither UTF-8 nor, by their many control characters, other text."""
    num_controls = len(head) - len(head.translate(None, CONTROLS))
    if num_controls <= len(head) // 20:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return True
    return False


def bad_bytes(data: bytes, encoding: str | None = None) -> str | None:
    """A message about the first byte that is not valid; None if all are.

    Args:
        data: Bytes that should be UTF-8.
        encoding: The encoding from which they were converted, for text files.
    """
    try:
        data.decode()
    except UnicodeDecodeError as error:
        start = error.start
    else:
        return None
    if encoding not in (None, "utf-8"):
        return (
            f"bytes at position {start + 1} are not {encoding}, expected text in {encoding}; "
            f"{ImportSettings.usage(encoding='NAME')} names another encoding"
        )
    found = f"byte 0x{data[start]:02x} at position {start + 1} is not UTF-8, expected UTF-8 text"
    if encoding is None:
        return found
    if not is_text(data, USUAL):
        named = ImportSettings.usage(encoding="NAME")
        return f"{found}; if the file is text, {named} names another encoding"
    shown = data[max(0, start - SHOWN_BYTES) : start + SHOWN_BYTES].decode(USUAL).strip()
    return (
        f"{found}; as {USUAL_NAME} it is {shown!r}: if that is right, give "
        f"{ImportSettings.usage(encoding=USUAL)}, else the name of another encoding"
    )
