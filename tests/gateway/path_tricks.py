"""Paths that try to climb out of a target's folder, or to reach it past the price: as raw bytes of a request line."""

from __future__ import annotations

from itertools import product
from typing import Final
from unicodedata import normalize
from urllib.parse import unquote_to_bytes

_DOTS: Final = (
    b"..",
    b"%2e%2e",
    b"%2E%2e",
    b".%2e",
    b"%2e.",
    b"%252e%252e",
    b"%25252e%25252e",
    b"%c0%ae%c0%ae",
    b"%e0%80%ae%e0%80%ae",
    b"%uff0e%uff0e",
    b"%ef%bc%8e%ef%bc%8e",
    b"%e2%80%a5",
    b"%e2%80%a4%e2%80%a4",
    b"..%20",
    b"..%00",
    b"..%09",
    b"..;",
    b"..;x=1",
    b"..%3b",
    b"...",
    b"....",
    b". .",
    b"\\..",
    b"..\\",
    b"%5c..",
    b"..%5c",
    b"..%c0%af",
    b"..%01",
    b"%20..",
    b"..%0d%0a",
)
_SEPARATORS: Final = (
    b"/",
    b"%2f",
    b"%2F",
    b"%252f",
    b"\\",
    b"%5c",
    b"%255c",
    b"%c0%af",
    b"%e0%80%af",
    b"%ef%bc%8f",
    b"%e2%81%84",
    b"//",
    b"/./",
)
_ALONE: Final = (
    b"//",
    b"///etc",
    b"//evil.example/x",
    b"/;",
    b"/;/",
    b"/a;b",
    b"/a%3bb",
    b"/.",
    b"/./",
    b"/..",
    b"/../",
    b"/a/..",
    b"/a/../..",
    b"/%2e",
    b"/%00",
    b"/a%00.json",
    b"/%0a",
    b"/%0d%0aX:1",
    b"/%7f",
    b"/%80",
    b"/%ff",
    b"/%",
    b"/%2",
    b"/%zz",
    b"/%u002e",
    b"/a\\b",
    b"/a#b",
    b"/a|b",
    b"/{x}",
    b"/<x>",
    b'/a"b',
    b"/a^b",
    b"/a`b",
    b"/\xc3\xa9",
    b"/\x80",
    b"/%e2%80%8b",
    b"/%c2%a0",
    b"/%e2%80%ae",
    b"/%ef%bb%bf",
    b"/%ed%a0%80",
    b"/%f4%90%80%80",
    b"/%c1%bf",
    b"/a/%2e%2e%2f",
    b"/a%2fb",
    b"/a%5cb",
    b"/%25%32%65",
    b"/%2%65",
    b"/%2525252e",
    b"/a/b//c",
    b"/a//",
    b"/ ",
    b"/%20",
    b"/%20/",
    b"/. ",
    b"/a/.%20",
    b"/a/...%20/b",
    b"?/../..",
    b"/?/../../x",
    b"/a?b#c",
    b"/a?\x00",
)
# Served where the gate sells what is below: they mean one thing only.
GOOD: Final = (
    b"",
    b"/",
    b"/a",
    b"/a/",
    b"/a/b.json",
    b"/a-b_c~d",
    b"/a%20b",
    b"/%41",
    b"/caf%C3%A9",
    b"/a:b",
    b"/a@b",
    b"/a+b,c=d&e",
    b"/(a)!*'$",
    b"/a.b.c",
    b"/.hidden",
    b"/a..b",
    b"/100%25",
    b"/%E6%97%A5",
    b"/a?x=/../y",
    b"/a?%2e%2e%2f",
    # A query is no path: browsers send these as they are.
    b"?off=50%",
    b"/a?b\\..\\c&%2&%zz&d=\"<>^`{|}'",
)


def tricks(slug: bytes) -> list[bytes]:
    """Request targets, none twice: at least 300 below the slug, and those that hide or surround it."""
    below = [
        separator + dots + separator + tail for dots, separator, tail in product(_DOTS, _SEPARATORS, (b"secret", b""))
    ]
    around = [
        b"//" + slug,
        b"/./" + slug,
        b"/x/../" + slug,
        b"/%2e/" + slug,
        b"/%2f" + slug,
        b"/" + slug + b"%2f..",
        b"/" + slug + b"%00",
        b"/" + slug + b"%20",
        b"/" + slug + b".",
        b"/" + slug + b"..",
        b"/" + slug + b";",
        b"/" + slug + b"\\..",
        b"/" + slug + b"%5c",
        b"\\" + slug,
        b"/" + slug[:-1] + b"%" + slug[-1:].hex().encode(),
        b"http://127.0.0.1/" + slug + b"/../x",
        b"http://other.example/" + slug,
        b"/api/../" + slug,
        b"/" + slug + b"/../" + slug,
        b"*",
        slug,
        b"/hub/../" + slug,
    ]
    return list(dict.fromkeys([*(b"/" + slug + path for path in (*below, *_ALONE)), *around]))


def escapes(path: str, folder: str) -> bool:
    """Would any reader, who undoes escapes once or thrice and folds whatever may be folded, leave the folder?"""
    text = path.partition("?")[0].encode("latin-1")
    for _ in range(4):
        read = normalize("NFKC", text.decode("utf-8", "replace")).replace("\\", "/")
        parts: list[str] = []
        for part in read.split("/"):
            name = part.partition(";")[0].strip(" \t\x00")
            if name == "..":
                if not parts:
                    return True
                parts.pop()
            elif name not in ("", "."):
                parts.append(name)
        if not ("/" + "/".join(parts) + "/").startswith(folder + "/"):
            return True
        text = unquote_to_bytes(text)
    return False
