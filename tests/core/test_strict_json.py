"""JSON of strangers is read in one way or refused with ValueError (security A-33)."""

from __future__ import annotations

import json
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tollkeeper.core.api.strict_json import NumberText, parse_json, parse_json_around
from tollkeeper.core.limits import JSON_DEPTH, JSON_INTEGER_DIGITS

SCALARS = st.none() | st.booleans() | st.integers(-(10**70), 10**70) | st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)

REFUSED: list[bytes] = [
    b"",
    b" ",
    b"{",
    b"{}{}",
    b"{} x",
    b"[1,]",
    b"{'a':1}",
    b'{"a":1,"a":1}',
    b'{"a":1,"\\u0061":2}',
    b'{"a":{"b":1,"b":2}}',
    b"NaN",
    b"Infinity",
    b'{"a":-Infinity}',
    b"[NaN]",
    b"01",
    b"+1",
    b"1_000",
    b"0x10",
    b"1" * (JSON_INTEGER_DIGITS + 1),
    b"-" + b"1" * JSON_INTEGER_DIGITS,
    b"9" * 5000,
    "\u0661\u0662".encode(),
    '{"a":"b"}'.encode("utf-16"),
    '{"a":"b"}'.encode("utf-16-le"),
    '{"a":"b"}'.encode("utf-32"),
    b'\xef\xbb\xbf{"a":1}',
    b'"\xff"',
    b'"\xed\xa0\x80"',  # a surrogate in UTF-8
    b'"\xc0\x80"',  # an overlong NUL
    b'"\\ud800"',
    b'"\\udc00"',
    b'"\\udc00\\ud800"',
    b'["\\ud800"]',
    b'{"\\ud800":1}',
    b'{"a":["b",{"c":"\\uDFFF"}]}',
    b'"\x00"',
    b'"\n"',
    b"[" * 9 + b"]" * 9,
    b'{"a":' * 9 + b"1" + b"}" * 9,
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000,
    b"nul",
    b"True",
    b"//x\n1",
]


@given(VALUES)
def test_what_json_writes_is_read_back_as_the_same_value(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        if depth(value) > JSON_DEPTH:
            with pytest.raises(ValueError, match="nested too deeply"):
                parse_json(text.encode())
        else:
            assert parse_json(text.encode()) == value


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max((depth(inner) for inner in value.values()), default=0)
    return 1 + max((depth(inner) for inner in value), default=0) if isinstance(value, list) else 0


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_value_error(data: bytes) -> None:
    try:
        parse_json(data)
    except ValueError:
        return
    json.loads(data.decode("utf-8"))


# JSON texts in every spelling, good and bad: keys twice, spaces in and around strings, escapes, numbers of all kinds.
SPACE = st.sampled_from(["", "", "", " ", "\n", "\t\r\n "])
STRINGS = ["a", "a ", " a", "b", "", " ", "\u00e9", "\u2028", "\x7f", "/", "\U0001f600", "\n", "\t", "\x00"]
ESCAPES = [r"\u0061", r"\u0020", r"\u00e9", r"\n", r"\u000a", r"\/", r"\u001f", r"\u001F", r"\u0000", r"\"", r"\\"]
SURROGATES = [r"\ud83d\ude00", r"\ud800", r"\udc00", r"\udc00\ud800", r"\x"]
STRING = st.lists(st.sampled_from([*STRINGS, *ESCAPES, *SURROGATES]), max_size=2).map(
    lambda parts: f'"{"".join(parts)}"'
)
NUMBERS = [
    "0",
    "1",
    "-1",
    "-0",
    "00",
    "01",
    "1.0",
    "1.5",
    "1e2",
    "1E+2",
    "-0.0",
    "1e999",
    "NaN",
    "-Infinity",
    "+1",
    "1_0",
]
INTEGERS = [*(str(2**63 + n) for n in (-1, 0, 2**63 - 1, 2**63)), *("9" * n for n in (79, 80, 81)), "-" + "9" * 80]
NUMBER = st.sampled_from([*NUMBERS, *INTEGERS, "-" + "9" * 79, "\u0661"])
WORD = st.sampled_from(["null", "true", "false", "True", "nul"])


def spelled(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    member = st.tuples(STRING, SPACE, SPACE, inner).map(lambda parts: f"{parts[0]}{parts[1]}:{parts[2]}{parts[3]}")
    members = st.tuples(SPACE, st.lists(member, max_size=3)).map(lambda two: f"{{{two[0]}{f',{two[0]}'.join(two[1])}}}")
    items = st.tuples(SPACE, st.lists(inner, max_size=3)).map(lambda two: f"[{f'{two[0]},'.join(two[1])}{two[0]}]")
    return members | items


TEXTS = st.tuples(SPACE, st.recursive(STRING | NUMBER | WORD, spelled, max_leaves=6), SPACE).map("".join)


def reference(data: bytes) -> object:
    """The same rules, written as plainly as they can be; None where the document is refused."""

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len({name for name, _ in pairs}) != len(pairs):
            raise ValueError
        return dict(pairs)

    def integer(digits: str) -> int:
        if len(digits) > JSON_INTEGER_DIGITS:
            raise ValueError
        return int(digits)

    def refuse(_: str) -> object:
        raise ValueError

    try:
        value = json.loads(
            data.decode(), object_pairs_hook=members, parse_int=integer, parse_float=NumberText, parse_constant=refuse
        )
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except ValueError:
        return None
    return (value,) if depth(value) <= JSON_DEPTH else None


@given(TEXTS)
@settings(max_examples=700)
def test_every_spelling_is_read_as_the_plainest_reader_with_the_same_rules_reads_it(text: str) -> None:
    expected = reference(text.encode())
    if expected is None:
        with pytest.raises(ValueError, match=r".*"):
            parse_json(text.encode())
    else:
        value = parse_json(text.encode())
        assert (value,) == expected
        assert repr((value,)) == repr(expected)  # true is not 1, and an integer is not a text


@pytest.mark.parametrize("data", REFUSED, ids=lambda data: repr(data[:24]))
def test_the_ambiguous_and_the_outsized_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_json(data)


def test_depth_is_allowed_up_to_the_limit_and_not_one_more() -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        at_limit = opening * JSON_DEPTH + b"1" + closing * JSON_DEPTH
        assert parse_json(at_limit) is not None
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(opening + at_limit + closing)


def test_many_brackets_side_by_side_are_not_depth() -> None:
    assert parse_json(b"[" + b"[]," * 50 + b'{"a":{}}]') == [[]] * 50 + [{"a": {}}]
    assert parse_json(b'"' + b"{[" * 50 + b'"') == "{[" * 50


def test_brackets_in_strings_are_not_depth_and_quotes_do_not_hide_it() -> None:
    deep = b"[" * (JSON_DEPTH + 1)
    for text in (b'"%s"', b'["\\"%s"]', b'{"\\\\":"%s"}', b'["\\\\\\"","%s"]'):
        assert parse_json(text % deep) is not None
    for text in (b'["\\\\",%s', b'["a",%s', b'{"a\\"":"b","c":%s'):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(text % deep)


def test_nesting_cannot_exhaust_the_stack_where_a_library_raised_the_recursion_limit() -> None:
    former = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        for data in (b"[" * 1_000_000, b'{"a":' * 300_000, b'["a",' * 300_000):
            with pytest.raises(ValueError, match="nested too deeply"):
                parse_json(data)
    finally:
        sys.setrecursionlimit(former)


def test_a_string_without_an_end_costs_no_more_than_its_length() -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=r".+"):
        parse_json(b"[" * JSON_DEPTH + b"{" + b'"' + b'\\"' * 500_000)
    assert time.process_time() - started < 2


def test_an_integer_may_have_the_limit_s_digits_and_not_one_more() -> None:
    assert parse_json(b"9" * JSON_INTEGER_DIGITS) == 10**JSON_INTEGER_DIGITS - 1
    with pytest.raises(ValueError, match="too many digits"):
        parse_json(b"9" * (JSON_INTEGER_DIGITS + 1))


@pytest.mark.parametrize("text", ["0.01", "1e2", "1E400", "-0.0", "1.0", "1e999999999", "0." + "1" * 5000])
def test_a_number_that_is_no_integer_stays_the_text_that_was_written(text: str) -> None:
    assert parse_json(f'{{"price":{text}}}'.encode()) == {"price": NumberText(text)}


def test_escaped_text_is_read_where_it_is_whole() -> None:
    assert parse_json(b'{"\\u0061":["\\ud83d\\ude00","\\u0000",1,null,{"b":true}]}') == {
        "a": ["\U0001f600", "\x00", 1, None, {"b": True}]
    }


def test_around_what_is_ours_nothing_that_others_wrote_is_a_fault() -> None:
    text = '{"mine": 5, "theirs": {"long": %s, "half": "\\ud83d", "share": 1.5}, "twice": 1, "twice": 2}' % ("9" * 100)
    read = parse_json_around(text.encode())
    assert (read["mine"], read["twice"]) == (5, NumberText("twice"))
    assert read["theirs"] == {"long": NumberText("9" * 100), "half": "\ud83d", "share": NumberText("1.5")}
    assert parse_json_around(b'{"a":1}') == {"a": 1}


def test_around_what_is_ours_json_may_be_64_deep() -> None:
    assert depth(parse_json_around(b"[" * 64 + b"]" * 64)) == 64
    for text in (b"[" * 65 + b"]" * 65, b"[" * 100_000, b'{"a": NaN}', b"nul", b"\xff", b'{"a": 1} 2'):
        with pytest.raises(ValueError):  # noqa: PT011 - of several readers
            parse_json_around(text)
