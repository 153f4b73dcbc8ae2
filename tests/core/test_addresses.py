"""What a target URL may look like and where it may point (contract 3.4, security A-41 and finding 9)."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.target_addresses import (
    TargetUrl,
    check_target_url,
    is_public_unicast,
    is_target_address,
    parse_address,
)


def words(text: str) -> list[str]:
    return text.split()


PUBLIC = words("""
1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 168.63.129.15
168.63.129.17 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0 192.0.3.0
192.31.195.255 192.31.197.0 192.52.192.255 192.52.194.0 192.88.98.255 192.88.100.0 192.167.255.255 192.169.0.0
192.175.47.255 192.175.49.0 198.17.255.255 198.20.0.0 198.51.99.255 198.51.101.0 203.0.112.255 203.0.114.0
223.255.255.255 2000::1 2001:200::1 2001:4860:4860::8888 2001:db7:ffff::1 2001:db9::1 2003::1 2400:cb00::1
2606:4700:4700::1111 2620:4f:7fff::1 2620:4f:8001::1 2a00:1450:4001:800::200e 3ffd::1 3fff:1000::1
""")

NOT_PUBLIC = words("""
0.0.0.0 0.0.0.1 0.255.255.255 10.0.0.0 10.0.0.1 10.255.255.255 100.64.0.0 100.100.100.200 100.127.255.255 127.0.0.0
127.0.0.1 127.1.2.3 127.255.255.255 168.63.129.16 169.254.0.0 169.254.169.253 169.254.169.254 169.254.170.2
169.254.255.255 172.16.0.0 172.17.0.1 172.31.255.255 192.0.0.0 192.0.0.1 192.0.0.8 192.0.0.9 192.0.0.10 192.0.0.170
192.0.0.192 192.0.0.255 192.0.2.0 192.0.2.255 192.31.196.0 192.31.196.255 192.52.193.0 192.52.193.255 192.88.99.0
192.88.99.1 192.88.99.255 192.168.0.0 192.168.1.1 192.168.255.255 192.175.48.0 192.175.48.255 198.18.0.0
198.19.255.255 198.51.100.0 198.51.100.255 203.0.113.0 203.0.113.255 224.0.0.0 224.0.0.1 224.0.0.251 239.255.255.250
239.255.255.255 240.0.0.0 250.1.2.3 255.255.255.254 255.255.255.255 :: ::1 ::2 ::127.0.0.1 ::8.8.8.8 ::ffff:0:0
::ffff:8.8.8.8 ::ffff:10.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1 64:ff9b::8.8.8.8
64:ff9b::127.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 64:ff9b:1:ffff::10.0.0.1 100::1 100:0:0:1::1 200::1 400::1
1000::1 1fff:ffff::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:1::1 2001:1::2 2001:2::1 2001:3::1
2001:4:112::1 2001:10::1 2001:20::1 2001:30::1 2001:1ff:ffff::1 2001:db8::1 2001:db8:ffff::1 2002::1 2002:7f00:1::
2002:a9fe:a9fe:: 2002:808:808::1 2620:4f:8000::1 2620:4f:8000:ffff::1 3ffe::1 3ffe:ffff::1 3fff::1 3fff:fff:ffff::1
4000::1 5f00::1 5fff:ffff::1 8000::1 c000::1 e000::1 f000::1 f800::1 fc00::1 fd00:ec2::254 fd12:3456:789a:1::1
fdff:ffff::1 fe00::1 fe80::1 fe80::a9fe:a9fe febf:ffff::1 fec0::1 feff:ffff::1 ff00::1 ff01::1 ff02::1 ff02::2
ff05::1:3 ff0e::1 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff
""")

NEVER = words("""
0.0.0.0 0.1.2.3 169.254.169.254 169.254.170.2 224.0.0.1 239.255.255.255 255.255.255.255 :: fe80::1 febf::1
fd00:ec2::254 ff02::1 ff0e::1 ::ffff:0.0.0.0 ::ffff:169.254.169.254 ::ffff:224.0.0.1 ::ffff:255.255.255.255
100.100.100.200 168.63.129.16 192.0.0.192 fd20:ce::254 fd00:c1::a9fe:a9fe fd00:42::42 64:ff9b::169.254.169.254
64:ff9b::100.100.100.200 64:ff9b::168.63.129.16 64:ff9b::192.0.0.192 64:ff9b:1::a9fe:a9fe 64:ff9b:1:2:3::169.254.169.254
2002:a9fe:a9fe:: 2002:6464:64c8::1 ::ffff:100.100.100.200 ::ffff:168.63.129.16 ::ffff:192.0.0.192
""")

IN_DEVELOPMENT = words("""
127.0.0.1 127.9.9.9 10.0.0.1 172.17.0.1 192.168.1.1 100.64.0.1 198.18.0.1 240.0.0.1 8.8.8.8 ::1 ::ffff:127.0.0.1
fc00::1 fd12::1 2001:db8::1 2606:4700::1111 100.100.100.201 168.63.129.17 192.0.0.193 fd00:ec2::255 64:ff9b::10.0.0.1
64:ff9b::8.8.8.8 64:ff9b:1::10.0.0.1 2002:a00:1::1
""")

# Spellings of addresses that some reader takes for one, and that are not its canonical form.
ODD_HOSTS = words("""
0 1 127 2130706433 2852039166 4294967295 4294967296 0x0 0x7f000001 0X7F000001 0xa9fea9fe 017700000001 0x7f.1 127.1
127.0.1 127.0.0.1. 127.0.0.01 127.0.0.001 0127.0.0.1 0177.0.0.1 0x7f.0.0.1 0x7f.0x0.0x0.0x1 127.0.0.0x1 127.0x0.1
169.254.43518 169.16689662 0xa9.0xfe.0xa9.0xfe 0251.0376.0251.0376 0xa9.254.0251.254 8.8.8 8.8 08.8.8.8 8.8.8.08
256.1.1.1 1.256.1.1 1.1.1.256 1.1.1.1.1 1.1.1.1.com.1 1.2.3.4.5 example.1 example.0x1 example.0x example.08 127..0.1
.127.0.0.1 127.0.0.-1 127.0.0.1%00 127.0.0.1%0a 127.0.0.1%2f 127.0.0.1,8.8.8.8 +127.0.0.1 127.0.0.+1 1_0.0.0.1
127.0.0.1- ::1 fe80::1 [::1 ::1] [] [:] [:::] [127.0.0.1] [::1]] [[::1]] [::1]x [::1%25lo] [::1%lo] [fe80::1%eth0]
[fe80::1%251] [::ffff:127.0.0.1%1] [g::1] [1:2:3:4:5:6:7:8:9] [1:2] [::1.2.3] [::01.2.3.4] [v1.fe80::1]
[::ffff:0x7f.1] [0:0:0:0:0:ffff:7f.0.0.1] [12345::1]
""")
ODD_HOSTS += [
    "１２７.0.0.1",
    "127。0。0。1",
    "127．0．0．1",
    "127｡0｡0｡1",
    "①②⑦.0.0.1",
    "⑯⑨.②⑤④.①⑥⑨.②⑤④",
    "１２７.１",
    "𝟏𝟐𝟕.0.0.1",
    "١٢٧.0.0.1",
    "127.0.0.１",
    "localhost。",
    "exa\u3002mple.com",
    "ｅxample.com",
    "ⓔxample.com",
    "exam℀ple.com",
    "straße.de",
    "βόλος.gr",
    "a\u200db.com",
    "a\u200cb.com",
    "a\u00adb.com",
    "a\u202eb.com",
    "K\u212aelvin.com",
    "ﬁsh.com",
    "exam\u0000ple.com",
    "exam\nple.com",
    "exam ple.com",
    "example.com ",
    "example.com\t",
    "-a.com",
    "a-.com",
    "a..com",
    ".com",
    "com.",
    "example.com.",
    "a" * 64 + ".com",
    ".".join(["a" * 60] * 5),
    "ü" * 60 + ".com",
    "exa%6dple.com",
    "%31%32%37.0.0.1",
    "example.com\\",
    "example.com\\@127.0.0.1",
    "exam<ple.com",
    "exam^ple.com",
    "exam|ple.com",
    "a,b.com",
    "a;b.com",
    "a=b.com",
    "a!b.com",
    "(a).com",
    "*.com",
    "",
]

ODD_URLS = [
    *words("""
//example.com/ /etc/passwd example.com example.com:80 http: http:/ http:// http:/// http:example.com
http:/example.com http:///example.com ftp://example.com file:///etc/passwd gopher://example.com
dict://example.com:11211/ ldap://example.com jar:http://example.com!/ data:text/html,x javascript:alert(1)
unix:///var/run/docker.sock ws://example.com wss://example.com h2://example.com httpx://example.com
http+unix://%2Fvar%2Frun%2Fdocker.sock/ blob:http://example.com/x view-source:http://example.com
http://user@example.com http://user:pw@example.com http://@example.com http://:@example.com
http://example.com@127.0.0.1/ http://127.0.0.1@example.com/ http://a:b@c:d@example.com http://example.com#@127.0.0.1
http://example.com/#frag http://example.com# http://example.com/?q#f http://example.com:0 http://example.com:00
http://example.com:65536 http://example.com:99999 http://example.com:080 http://example.com: http://example.com:/
http://example.com:+80 http://example.com:-80 http://example.com:8a http://example.com:0x50 http://example.com:80:80
http://[2606:4700::1111]: http://[2606:4700::1111]:0 http://[2606:4700::1111]80 http://[2606:4700::1111]:65536
http://[2606:4700::1111]x:80 http://example.com/../ http://example.com/a/.. http://example.com/./a
http://example.com/. http://example.com/.. http://example.com/%2e%2e/a http://example.com/.%2E/a
http://example.com/%2e http://example.com/a/%2E./b http://example.com/% http://example.com/%zz http://example.com/%1
http://example.com/a?%g0 http://example.com/<a> http://example.com/"a" http://example.com/{a} http://example.com/^
http://example.com/`a http://example.com/?<script> http://example.com?{x} https://example.com:443:443
"""),
    "http:\\\\example.com",
    "http://example.com:८०",
    "http://example.com/a\\b",
    "http://example.com\\a",
    "http://example.com/ü",
    "http://example.com/?ü",
    "http://example.com/?a\\b",
    "ＨＴＴＰ://example.com",
    "http：//example.com",
    "http://example.com:８０/",
    "http://example.com:443\\@10.0.0.1/",
    " http://example.com",
    "http://example.com ",
    "\thttp://example.com",
    "ht\ntp://example.com",
    "http://example.com/a b",
    "http://example.com/a\tb",
    "http://example.com/a\r\nHost: evil",
    "http://example.com/a\x00b",
    "http://example.com/?a b",
    "http://example.com/?a\r\nX: y",
    "http://example.com/" + "a" * 2048,
    "",
]


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_refused(url: str, *, allow_private: bool = False) -> bool:
    try:
        check_target_url(url, allow_private=allow_private)
    except ApiError as refusal:
        return (refusal.code, refusal.details) == (Code.INVALID_PARAMETER, {"field": "targetUrl"})
    return False


def test_the_policy_is_tried_with_at_least_250_vectors() -> None:
    vectors = {*PUBLIC, *NOT_PUBLIC, *NEVER, *IN_DEVELOPMENT, *ODD_HOSTS, *ODD_URLS}
    assert len(vectors) >= 250


@pytest.mark.parametrize("text", PUBLIC)
def test_public_unicast_addresses_are_targets(text: str) -> None:
    address = ip_address(text)
    assert is_public_unicast(address)
    assert is_target_address(address, allow_private=False)
    assert check_target_url(f"http://{in_url(text)}/", allow_private=False).host == str(address)


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_no_other_address_is_a_target(text: str) -> None:
    assert not is_public_unicast(ip_address(text))
    assert not is_target_address(ip_address(text), allow_private=False)
    assert is_refused(f"https://{in_url(text)}:8443/x")


@pytest.mark.parametrize("text", NEVER)
def test_development_reaches_neither_groups_nor_metadata(text: str) -> None:
    assert not is_target_address(ip_address(text), allow_private=True)
    assert is_refused(f"http://{in_url(text)}/", allow_private=True)


@pytest.mark.parametrize("text", IN_DEVELOPMENT)
def test_development_reaches_private_addresses(text: str) -> None:
    assert is_target_address(ip_address(text), allow_private=True)
    assert check_target_url(f"http://{in_url(text)}:5000", allow_private=True).port == 5000


@pytest.mark.parametrize("allow_private", [False, True])
@pytest.mark.parametrize("host", ODD_HOSTS)
def test_a_host_in_any_other_form_is_refused(*, host: str, allow_private: bool) -> None:
    assert is_refused(f"http://{host}/", allow_private=allow_private)


@pytest.mark.parametrize("allow_private", [False, True])
@pytest.mark.parametrize("url", ODD_URLS)
def test_a_url_in_any_other_form_is_refused(*, url: str, allow_private: bool) -> None:
    assert is_refused(url, allow_private=allow_private)


@pytest.mark.parametrize(
    ("url", "expected", "text"),
    [
        ("http://example.com", TargetUrl("http", "example.com", 80, "/", ""), "http://example.com/"),
        ("HTTPS://Example.COM", TargetUrl("https", "example.com", 443, "/", ""), "https://example.com/"),
        (
            "https://example.com:80/a?b=c",
            TargetUrl("https", "example.com", 80, "/a", "b=c"),
            "https://example.com:80/a?b=c",
        ),
        ("http://example.com:80?x", TargetUrl("http", "example.com", 80, "/", "x"), "http://example.com/?x"),
        ("http://example.com/?", TargetUrl("http", "example.com", 80, "/", ""), "http://example.com/"),
        (
            "http://a_b.c-d.io:65535/%41",
            TargetUrl("http", "a_b.c-d.io", 65535, "/%41", ""),
            "http://a_b.c-d.io:65535/%41",
        ),
        (
            "http://bücher.example/",
            TargetUrl("http", "xn--bcher-kva.example", 80, "/", ""),
            "http://xn--bcher-kva.example/",
        ),
        (
            "http://BÜCHER.example",
            TargetUrl("http", "xn--bcher-kva.example", 80, "/", ""),
            "http://xn--bcher-kva.example/",
        ),
        ("http://例え.jp", TargetUrl("http", "xn--r8jz45g.jp", 80, "/", ""), "http://xn--r8jz45g.jp/"),
        ("http://1.example", TargetUrl("http", "1.example", 80, "/", ""), "http://1.example/"),
        ("http://0x1.example", TargetUrl("http", "0x1.example", 80, "/", ""), "http://0x1.example/"),
        ("http://8.8.8.8:1", TargetUrl("http", "8.8.8.8", 1, "/", ""), "http://8.8.8.8:1/"),
        (
            "https://[2606:4700:0:0::1111]/a;b?c[]=d|e@f/?",
            TargetUrl("https", "2606:4700::1111", 443, "/a;b", "c[]=d|e@f/?"),
            "https://[2606:4700::1111]/a;b?c[]=d|e@f/?",
        ),
        (
            "http://[2606:4700::1111]:8080/a//b/...",
            TargetUrl("http", "2606:4700::1111", 8080, "/a//b/...", ""),
            "http://[2606:4700::1111]:8080/a//b/...",
        ),
    ],
)
def test_a_plain_url_is_taken_apart(url: str, expected: TargetUrl, text: str) -> None:
    target = check_target_url(url, allow_private=False)
    assert target == expected
    assert target.text == text
    assert check_target_url(text, allow_private=False) == expected


def test_an_authority_names_the_port_only_where_it_is_not_the_scheme_s_own() -> None:
    assert TargetUrl("http", "example.com", 80, "/", "").authority == "example.com"
    assert TargetUrl("https", "example.com", 80, "/", "").authority == "example.com:80"
    assert TargetUrl("https", "2606::1", 443, "/", "").authority == "[2606::1]"
    assert TargetUrl("http", "2606::1", 443, "/", "").authority == "[2606::1]:443"


@pytest.mark.parametrize("text", ["", "1.2.3", "01.2.3.4", "1.2.3.4 ", "999.1.1.1", "::1%lo", "1:2", "example.com"])
def test_what_is_no_address_is_not_read_as_one(text: str) -> None:
    assert parse_address(text) is None


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_carried_by_ipv6_is_never_public(address: object) -> None:
    text = str(address)
    for form in (f"::ffff:{text}", f"::{text}", f"64:ff9b::{text}", f"::ffff:0:{text}", f"64:ff9b:1::{text}"):
        assert not is_public_unicast(ip_address(form))


@given(st.text(max_size=40))
def test_any_text_is_taken_apart_or_refused(text: str) -> None:
    for url in (text, f"http://{text}", f"https://example.com:{text}", f"http://example.com/{text}"):
        if not is_refused(url):
            target = check_target_url(url, allow_private=False)
            assert target.text.isascii()
            assert check_target_url(target.text, allow_private=False) == target
