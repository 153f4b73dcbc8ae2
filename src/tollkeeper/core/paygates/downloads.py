"""Downloads of files: presigned links, names, types, ranges and conditions (contract 4.8; security A-43, A-44).

A link is bound to one file and one purchase until one second; whoever holds it downloads, with nothing else to show.
What is stored where, and whether the file is still there, is not decided here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, quote

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.limits import FILE_NAME_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FILE_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
DEFAULT_TYPE: Final = "application/octet-stream"
_PURCHASE_ID: Final = re.compile(r"pur_[0-9a-f]{32}", re.ASCII)
_CALL_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_SECONDS: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}", re.ASCII)
_ENDING: Final = re.compile(r"(?:\.\w{1,16}){1,2}$")  # .pdf, .tar.gz
_RANGE: Final = re.compile(r"bytes=[ \t]*(?:([0-9]{1,18})-([0-9]{1,18})?|-([0-9]{1,18}))[ \t]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The content of a file PayGate. `id` is random and names the object in its store; `sha256` is hex."""

    id: str
    name: str
    size_bytes: int
    content_type: str
    sha256: str

    @property
    def etag(self) -> str:
        """ETag of the content, whatever the file is called."""
        return f'"{self.sha256}"'


@dataclass(frozen=True, slots=True)
class Link:
    """Content of a presigned link: one file, for one purchase, until `expires` (Unix seconds).

    `call_id` names the request that the link was given to, so that each call has another link.
    """

    file_id: str
    purchase_id: str
    expires: int
    call_id: str

    def tag(self, key: bytes) -> str:
        """The signature that only holders of the key can make."""
        text = f"download:{self.file_id}:{self.purchase_id}:{self.expires}:{self.call_id}"
        return base64.urlsafe_b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).rstrip(b"=").decode()

    def path(self, key: bytes) -> str:
        """Path and query of the link."""
        query = f"purchase={self.purchase_id}&expires={self.expires}&call={self.call_id}&signature={self.tag(key)}"
        return f"/files/{self.file_id}?{query}"


def read_link(file_id: str, query: bytes, keys: Sequence[bytes], now_seconds: int) -> Link:
    """The link, if one of our keys signed exactly this one and its time is not over.

    Raises: NOT_FOUND for an id that none of ours looks like; FORBIDDEN.
    """
    if FILE_ID.fullmatch(file_id) is None:
        raise ApiError(Code.NOT_FOUND, "there is no such file")
    forbidden = ApiError(Code.FORBIDDEN, "this download link is not one of ours")
    try:
        given = parse_qs(query.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=4)
    except ValueError:
        raise forbidden from None
    if given.keys() != {"purchase", "expires", "call", "signature"} or any(len(one) != 1 for one in given.values()):
        raise forbidden
    purchase_id, expires, call_id, signature = (given[name][0] for name in ("purchase", "expires", "call", "signature"))
    if _PURCHASE_ID.fullmatch(purchase_id) is None or _CALL_ID.fullmatch(call_id) is None:
        raise forbidden
    if _SECONDS.fullmatch(expires) is None or not signature.isascii():
        raise forbidden
    link = Link(file_id, purchase_id, int(expires), call_id)
    matches = [hmac.compare_digest(link.tag(key), signature) for key in keys]  # each is compared, so that time is equal
    if str(link.expires) != expires or True not in matches:
        raise forbidden
    if now_seconds >= link.expires:
        raise ApiError(Code.FORBIDDEN, "this download link has expired: call the PayGate again for another one")
    return link


def clean_name(name: str | None) -> str:
    """The name that a file is given to buyers: the last part of what was sent, without what file systems mistake.

    A long one loses its middle: by its end buyers' machines know what it is.
    """
    last = (name or "").replace("\\", "/").rpartition("/")[2]
    kept = "".join(letter for letter in unicodedata.normalize("NFC", last) if _is_printable(letter))
    kept = kept.strip(" .")
    if len(kept) > FILE_NAME_LENGTH:
        ending = _ENDING.search(kept)
        extension = "" if ending is None else ending[0]
        kept = kept[: FILE_NAME_LENGTH - len(extension)].rstrip(" .") + extension
    return kept or "file"


def _is_printable(letter: str) -> bool:
    # No control, format (bidirectional marks make "exe.pdf" of "fdp.exe"), surrogate or private character.
    return unicodedata.category(letter)[0] != "C" and letter not in '<>:"|?*'


def clean_type(content_type: str | None) -> str:
    """The media type that was sent, without parameters; what cannot be one is octets."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    return kind if _TYPE.fullmatch(kind) else DEFAULT_TYPE


def disposition(name: str) -> str:
    """`Content-Disposition` of a download (RFC 6266): never shown in a page, under its name in both spellings."""
    plain = "".join(letter if letter.isascii() and letter not in '"\\%' else "_" for letter in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def bought_body(file: StoredFile, download_url: str, expires: int, iso: Callable[[int], str]) -> dict[str, str | int]:
    """Return the body that a buyer of the file is answered with."""
    return {
        "downloadUrl": download_url,
        "fileName": file.name,
        "size": file.size_bytes,
        "contentType": file.content_type,
        "sha256": file.sha256,
        "expiresAt": iso(expires * 1000),
    }


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file to send, from `start` up to and without `end`, with the status of the answer."""

    status: int
    start: int
    end: int


def asked_part(file: StoredFile, header: Callable[[str], str | None]) -> Part:
    """Return what to answer to a GET or HEAD with these headers (RFC 9110, 13 and 14).

    304 if the caller has the content, 412 if the caller wants another one, 206 for one range, 416 for a range outside.
    The whole file for several ranges or for a range that cannot be read: the RFC allows it, and no header multiplies
    work.
    """
    whole = Part(200, 0, file.size_bytes)
    if_match, if_none_match = header("if-match"), header("if-none-match")
    if if_match is not None and not _names(if_match, file.etag, weak=False):
        return Part(412, 0, 0)
    if if_none_match is not None and _names(if_none_match, file.etag, weak=True):
        return Part(304, 0, 0)
    asked = header("range")
    found = None if asked is None else _RANGE.fullmatch(asked)
    if found is None or header("if-range") not in {None, file.etag}:
        return whole
    first, last, suffix = found.groups()
    if first is None:
        start, end = max(0, file.size_bytes - int(suffix)), file.size_bytes
    else:
        start, end = int(first), file.size_bytes if last is None else min(int(last) + 1, file.size_bytes)
        if last is not None and int(last) < start:
            return whole
    return Part(206, start, end) if start < end else Part(416, 0, 0)


def _names(tags: str, etag: str, *, weak: bool) -> bool:
    """Is the entity tag among those of a condition? A weak comparison ignores the mark of weak tags."""
    listed = [tag.strip() for tag in tags.split(",")]
    return "*" in listed or etag in listed or (weak and f"W/{etag}" in listed)
