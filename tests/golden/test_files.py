"""What goes out of a gate that sells a file, and of its downloads."""

from __future__ import annotations

from tests.golden.place import GATES, Place, recorded_at, wallet
from tests.specification.client import Json
from tests.specification.world import World

CONTENT = b"0123456789"
FORM = {"Content-Type": "multipart/form-data; boundary=b"}


def form(*fields: tuple[str, str], file: bytes | None = CONTENT, name: str = "rep\xc3\xb6rt.pdf") -> bytes:
    """A form as a browser sends it."""
    parts = [
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'.encode() for name, text in fields
    ]
    if file is not None:
        head = f'--b\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'.encode("latin-1")
        parts.append(head + b"Content-Type: application/pdf\r\n\r\n" + file + b"\r\n")
    return b"".join((*parts, b"--b--\r\n"))


FIELDS = (("price", "0.01"), ("resourceType", "file"), ("credits", "2"), ("slug", "golden-file"))


async def test_files(world: World) -> None:
    with recorded_at(world, "files") as place:
        owner = await place.access_token(wallet("file owner"))
        made = await place.gateway("uploaded", "POST", GATES, owner, headers=FORM, content=form(*FIELDS))
        await place.gateway("uploaded by nobody", "POST", GATES, headers=FORM, content=form(*FIELDS))
        await place.gateway("no file", "POST", GATES, owner, headers=FORM, content=form(*FIELDS, file=None))
        twice = form(*FIELDS, FIELDS[0])
        await place.gateway("a field that came twice", "POST", GATES, owner, headers=FORM, content=twice)
        other = {"targetUrl": "https://192.0.2.1/", "price": "1", "resourceType": "file"}
        await place.gateway("a file by JSON", "POST", GATES, owner, body=other)
        gate: Json = made.body
        await place.call("the 402", gate)
        await place.call("the 402 in shape B", gate, headers={"Accept": 'application/json;profile="x402-b"'})
        paid = await world.payment(gate)
        await place.call("the call that buys", gate, paid)
        last = await place.call("a call on held credits", gate, paid)
        await place.call("credits used up", gate, paid)
        await place.call("another method", gate, method="POST", content=b"")
        await _downloads(place, last.body["downloadUrl"])
        new = form(("title", "New"), file=b"other", name="new.txt")
        path = f"{GATES}/{gate['id']}"
        await place.gateway("replaced", "PUT", path, owner, headers=FORM, content=new)
        await place.recording.ask("what was bought is still there", "HEAD", last.body["downloadUrl"])


async def _downloads(place: Place, link: str) -> None:
    ask = place.recording.ask
    whole = await ask("whole", "GET", link)
    etag = whole.header("etag")
    await ask("asked about", "HEAD", link)
    await ask("a part", "GET", link, {"Range": "bytes=2-5"})
    await ask("the end, if it is the same", "GET", link, {"Range": "bytes=-3", "If-Range": etag})
    await ask("a part that is not there", "GET", link, {"Range": "bytes=10-"})
    await ask("known", "GET", link, {"If-None-Match": etag})
    await ask("of another", "GET", link, {"If-Match": '"other"'})
    await ask("by a page", "OPTIONS", link, {"Origin": "https://shop.example", "Access-Control-Request-Method": "GET"})
    await ask("by another method", "POST", link, content=b"")
    await ask("a link that was changed", "GET", link.replace("signature=", "signature=x")[:-1])
    await ask("no link", "GET", link.partition("?")[0])
    await ask("no file", "GET", place.world.gateway_url + "/files/nothing")
