"""Target URLs that lead inside, however they are written: the corpus, and what its names resolve to (security A-41)."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Final

PUBLIC: Final = "93.184.216.34"  # where the tests' own target is; in the namespace every address is the machine's own
PUBLIC_V6: Final = "2606:2800:220:1::34"
OWN: Final = "93.184.216.40"  # where the gateway is, by its public URL
PUBLIC_NAME: Final = "public.test"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# One or more of each class that is not public unicast.
FORBIDDEN_V4: Final = _words("""
0.0.0.0 0.0.0.1 0.255.255.255 10.0.0.5 10.255.255.255 100.64.0.9 100.100.100.200 100.127.255.255 127.0.0.1 127.0.0.2
127.255.255.254 168.63.129.16 169.254.0.1 169.254.169.253 169.254.169.254 169.254.170.2 172.16.0.1 172.17.0.1
172.31.255.255 192.0.0.9 192.0.0.170 192.0.0.192 192.0.2.9 192.31.196.1 192.52.193.1 192.88.99.1 192.168.0.1
192.168.255.255 192.175.48.1 198.18.0.9 198.19.255.255 198.51.100.9 203.0.113.9 224.0.0.1 239.255.255.250 240.0.0.9
255.255.255.255
""")
FORBIDDEN_V6: Final = _words("""
:: ::1 ::2 ::127.0.0.1 ::169.254.169.254 ::93.184.216.34 ::ffff:127.0.0.1 ::ffff:10.0.0.5 ::ffff:169.254.169.254
::ffff:93.184.216.34 ::ffff:0:10.0.0.5 ::fffe:10.0.0.5 64:ff9b::127.0.0.1 64:ff9b::169.254.169.254
64:ff9b::93.184.216.34 64:ff9b:1::10.0.0.5 64:ff9b:1:a9fe:a9:fe00:: 100::1 100:0:0:1::1 2001::1
2001:0:a9fe:a9fe:8000:63bf:3fff:fdd2 2001:0:5db8:d822:0:f0f0:5601:5601 2001:2::1 2001:10::1 2001:20::1 2001:30::1
2001:db8::1 2002:7f00:1:: 2002:a9fe:a9fe::1 2002:a00:5:1::1 2620:4f:8000::1 3ffe::1 3fff::1 4000::1 5f00::1 fc00::1
fd00:ec2::254 fd00:42::42 fd20:ce::254 fdff:ffff::1 fe80::1 fe80::a9fe:a9fe febf::1 fec0::1 feff::1 ff01::1 ff02::1
ff05::1:3 ff0e::1
""")

# Name -> what its name server answers; "=name" is an alias. A name that is not here is at 10.66.66.66.
UNKNOWN_IS_AT: Final = "10.66.66.66"
NAMES: Final[dict[str, tuple[str, ...]]] = {
    PUBLIC_NAME: (PUBLIC,),
    **{f"v4-{number}.test": (address,) for number, address in enumerate(FORBIDDEN_V4)},
    **{f"v6-{number}.test": (address,) for number, address in enumerate(FORBIDDEN_V6)},
    "first-is-private.test": ("10.0.0.5", PUBLIC),
    "last-is-private.test": (PUBLIC, "10.0.0.5"),
    "one-of-many.test": (*(f"93.184.216.{host}" for host in range(50, 58)), "169.254.169.254"),
    "sixth-only-is-private.test": (PUBLIC, "fd00:ec2::254"),
    "sixth-only-is-loopback.test": (PUBLIC, "::1"),
    "sixth-only-is-mapped.test": (PUBLIC, "::ffff:169.254.169.254"),
    "sixth-only-is-nat64.test": (PUBLIC, "64:ff9b::a9fe:a9fe"),
    "fourth-only-is-private.test": (PUBLIC_V6, "10.0.0.5"),
    "alias.test": ("=v4-3.test",),
    "alias-of-alias.test": ("=alias.test",),
    "alias-of-alias-of-alias.test": ("=alias-of-alias.test",),
    "alias-of-localhost.test": ("=localhost.test",),
    "alias-and-public.test": ("=last-is-private.test",),
    "localhost.test": ("127.0.0.1", "::1"),
    "127.0.0.1.nip.test": ("127.0.0.1",),
    "a9fea9fe.nip.test": ("169.254.169.254",),
    "metadata.google.internal": ("169.254.169.254",),
    "instance-data.ec2.internal": ("169.254.169.254",),
    "_underscored.test": ("10.0.0.5",),
    "xn--mnchen-3ya.test": ("10.0.0.5",),
}

# Names that are public until they are asked again: what they turn into.
TURNING: Final[dict[str, tuple[str, ...]]] = {
    "turns-private.test": ("10.0.0.5",),
    "turns-metadata.test": ("169.254.169.254",),
    "turns-loopback.test": ("127.0.0.1",),
    "turns-sixth.test": ("fd00:ec2::254",),
    "turns-mapped.test": ("::ffff:169.254.169.254",),
    "turns-half.test": (PUBLIC, "192.168.0.1"),
    "turns-alias.test": ("=v4-3.test",),
}
ALTERNATING: Final = "alternates.test"  # public and private in turn, question by question


def corpus(gateway_port: int) -> list[str]:
    """Every vector: URLs that no target may have."""
    urls = [f"http://{address}/" for address in FORBIDDEN_V4]
    urls += [f"http://[{address}]/" for address in FORBIDDEN_V6]
    for address in ("169.254.169.254", "127.0.0.1", "10.0.0.5"):
        urls += [f"http://{host}/latest/meta-data/" for host in spellings(IPv4Address(address))]
    urls += [f"http://{host}/" for host in SPELLINGS_V6]
    urls += [f"http://{name}/" for name in NAMES if name != PUBLIC_NAME]
    urls += OTHERS
    urls += [
        f"http://{host}:{gateway_port}/api/v1/paygates"
        for host in (OWN, "127.0.0.1", "127.0.0.2", "0.0.0.0", "localhost", "[::1]", f"[::ffff:{OWN}]", "own.test")  # noqa: S104 - a vector
    ]
    urls += [f"http://{host}:{port}/" for host in (OWN, "own.test") for port in (80, 443, 6379)]  # beside the gateway
    return list(dict.fromkeys(urls))


def spellings(address: IPv4Address) -> list[str]:
    """Hosts that some reader takes for this address, and authorities that hide it."""
    text, number = str(address), int(address)
    a, b, c, d = address.packed
    fullwidth = str.maketrans("0123456789", "０１２３４５６７８９")
    circled = str.maketrans("123456789", "①②③④⑤⑥⑦⑧⑨")
    mathematical = str.maketrans("0123456789", "𝟘𝟙𝟚𝟛𝟜𝟝𝟞𝟟𝟠𝟡")
    arabic = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
    return [
        f"{number}",
        f"{number:#x}",
        f"{number:#X}",
        f"0{number:o}",
        f"0{number}",
        f"0x{number:016x}",
        f"{number + 2**32}",
        f"{a:#x}.{b:#x}.{c:#x}.{d:#x}",
        f"0{a:o}.0{b:o}.0{c:o}.0{d:o}",
        f"000{a:o}.000{b:o}.000{c:o}.000{d:o}",
        f"{a:03}.{b:03}.{c:03}.{d:04}",
        f"{a:#x}.{b}.0{c:o}.{d}",
        f"{a}.0{b:o}.{c:#x}.{d}",
        f"{a}.{b}.{c * 256 + d}",
        f"{a}.{b * 65536 + c * 256 + d}",
        f"{a:#x}.{b * 65536 + c * 256 + d:#x}",
        f"0{a:o}.{b}.{c * 256 + d:#x}",
        f"{a + 256}.{b}.{c}.{d}",
        f"{text}.",
        f"{text}..",
        f".{text}",
        f"{number}.",
        text.translate(fullwidth),
        text.translate(circled),
        text.translate(mathematical),
        text.translate(arabic),
        text.replace(".", "。"),
        text.replace(".", "．"),
        text.replace(".", "｡"),
        text.replace(".", "%2e"),
        f"%{ord(text[0]):x}{text[1:]}",
        f"{text}%00.public.test",
        f"{text}%2f.public.test",
        f"{text}%23.public.test",
        f"user@{text}",
        f"user:secret@{text}",
        f"public.test@{text}",
        f"public.test:80@{text}",
        f"{text}@public.test",
        f"public.test%40{text}",
        f"{text}\\@public.test",
        f"public.test\\@{text}",
        f"{text}\\.public.test",
        f"public.test#@{text}",
        f"{text}#.public.test",
        f"{text}\t",
        f"{text[:3]}\t{text[3:]}",
        f"{text}\n",
        f"{text}\r\nHost: public.test",
        f" {text}",
        f"{text} public.test",
        f"{text}\x00",
        f"{text}\u200b",
        f"{text}\u00ad",
        f"{text},public.test",
        f"{text};public.test",
        f"{text}:80:80",
        f"{text}:0",
        f"{text}:80",
        f"{text}:443",
        f"{text}:6379",
        f"{text}:080",
        f"{text}:65536",
        f"{text}:８０",
        f"{text}:",
        f"[{text}]",
        f"[::ffff:{text}]",
        f"[0:0:0:0:0:ffff:{text}]",
        f"[::ffff:{number >> 16:x}:{number & 65535:x}]",
        f"[0000:0000:0000:0000:0000:FFFF:{number >> 16:04X}:{number & 65535:04X}]",
        f"[::{text}]",
        f"[::ffff:0:{text}]",
        f"[64:ff9b::{text}]",
        f"[64:ff9b:1::{text}]",
        f"[2002:{number >> 16:x}:{number & 65535:x}::]",
        f"[2001:0:{number >> 16:x}:{number & 65535:x}::]",
        f"[2001:0:5db8:d822:0:0:{number >> 16 ^ 65535:x}:{number & 65535 ^ 65535:x}]",
        f"[::ffff:{text}%25lo]",
    ]


SPELLINGS_V6: Final = (
    *("[::1%25lo]", "[::1%lo]", "[fe80::1%25lo]", "[fe80::1%lo]", "[fe80::1%1]", "[fe80::1%251]", "[fe80::1%25]"),
    *("::1", "[::1", "::1]", "[[::1]]", "[::1]]", "[::1].public.test", "[::1]@public.test", "[]", "[:]", "[::1%00]"),
    *("[0:0:0:0:0:0:0:1]", "[0000:0000:0000:0000:0000:0000:0000:0001]", "[::0001]", "[0::1]", "[::0.0.0.1]"),
    *("[FD00:EC2::254]", "[fd00:0ec2:0:0:0:0:0:254]", "[FE80::1]", "[FF02::1]", "[v1.::1]", "[::ffff:0x7f.1]"),
    *("[::１]", "%5b::1%5d", "[::1]:0", "[::1]80", "[::1]:80@public.test", "ip6-localhost", "ip6-loopback"),
)

OTHERS: Final = (
    *(
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_x",
        "dict://127.0.0.1:11211/",
        "ftp://10.0.0.5/",
        "ldap://10.0.0.5/",
    ),
    *(
        "tftp://10.0.0.5/",
        "ws://127.0.0.1/",
        "unix:///run/docker.sock",
        "http+unix://%2Frun%2Fdocker.sock/",
        "jar:http://10.0.0.5!/",
    ),
    *(
        "data:text/plain,x",
        "javascript:x",
        "netdoc:///etc/passwd",
        "//169.254.169.254/",
        "/etc/passwd",
        "169.254.169.254",
    ),
    *(
        "http:169.254.169.254",
        "http:/169.254.169.254/",
        "http:///169.254.169.254/",
        "http:\\\\169.254.169.254\\",
        "http://",
    ),
    *(
        "ht\ttp://10.0.0.5/",
        " http://10.0.0.5/",
        "http ://10.0.0.5/",
        "http://?@10.0.0.5/",
        "http:///",
        "url:http://10.0.0.5/",
    ),
    *("http://localhost/", "http://LOCALHOST/", "http://localhost./", "http://ｌocalhost/", "http://loc%61lhost/"),
    *(
        "http://foo.localhost/",
        "http://localhost.localdomain/",
        "http://local\u00adhost/",
        "http://K8s.test/",
        "http://ﬀ.test/",
    ),
    *("http://metadata/", "http://kubernetes.default.svc/", "http://host.docker.internal/", "http://public.test./"),
    *(
        "http://public.test\\.internal.test/",
        "http://public.test:80\\@10.0.0.5/",
        "http://public.test/../../x",
        "http://.test/",
    ),
    *(
        "https://169.254.169.254/",
        "https://[fd00:ec2::254]/",
        "https://v4-3.test/",
        "http://internal.test:22/",
        "http://a..test/",
    ),
    *(
        "http://${jndi:ldap:10.0.0.5}/",
        "http://münchen.test/",
        "http://٣.test/",
        "http://{10.0.0.5}/",
        "http://10.0.0.5?@public.test/",
    ),
)
