"""Lines of any shape give their records back, and what is no record is told with its exact bytes."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kimi_sessions._lines import (
    Damage,
    decode_line,
    decode_value,
    iter_blocks,
    iter_lines,
    iter_lines_backwards,
)


def accept(value: dict[str, Any]) -> str | None:
    """Take an object with a number ``n`` for a record."""
    return None if isinstance(value.get("n"), int) else "no n"


def line(n: int, **more: Any) -> bytes:
    """Give a whole record as a line without its newline."""
    return json.dumps({"n": n, **more}, ensure_ascii=False).encode()


def numbers(raw: bytes) -> list[int]:
    """Give the numbers of the records on a line."""
    return [span.value["n"] for span in decode_line(raw, accept).records]


@contextmanager
def opened(data: bytes) -> Iterator[int]:
    """Give a descriptor of a file that holds these bytes."""
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(data)
        yield file.fileno()


# --- one line ------------------------------------------------------------------------------------------------------


def test_a_plain_record_is_given_with_its_bytes_and_no_damage() -> None:
    """The usual case."""
    decoded = decode_line(line(1, text="项目"), accept)
    assert [(span.offset, span.raw, span.value) for span in decoded.records] == [
        (0, line(1, text="项目"), {"n": 1, "text": "项目"})
    ]
    assert decoded.damage == []


@pytest.mark.parametrize("blank", [b"", b"  ", b"\t\r", b"\r"])
def test_a_blank_line_is_nothing(blank: bytes) -> None:
    """Neither record nor damage."""
    decoded = decode_line(blank, accept)
    assert (decoded.records, decoded.damage) == ([], [])


@pytest.mark.parametrize(
    "before,after",
    [(b"", b"\r"), (b"\xef\xbb\xbf", b""), (b"\xef\xbb\xbf \xef\xbb\xbf", b" \r"), (b" \t", b"  ")],
    ids=["carriage-return", "byte-order-mark", "two-marks", "spaces"],
)
def test_padding_around_a_record_is_passed_over(before: bytes, after: bytes) -> None:
    """What editors and other systems put there; the span is the record's own."""
    decoded = decode_line(before + line(1) + after, accept)
    assert [(span.offset, span.raw) for span in decoded.records] == [(len(before), line(1))]
    assert decoded.damage == []


@pytest.mark.parametrize("nuls", [1, 9000])
def test_a_record_beside_nuls_is_given_and_the_nuls_are_told(nuls: int) -> None:
    """What a machine's crash leaves: blocks of zeros, before or after a record, or alone."""
    zeros = b"\0" * nuls
    after = decode_line(line(1) + zeros, accept)
    assert [span.value["n"] for span in after.records] == [1]
    assert after.damage == [Damage(len(line(1)), nuls, f"{nuls} NUL bytes beside a record")]
    before = decode_line(zeros + line(1), accept)
    assert [(span.offset, span.value["n"]) for span in before.records] == [(nuls, 1)]
    assert before.damage == [Damage(0, nuls, f"{nuls} NUL bytes beside a record")]
    alone = decode_line(zeros, accept)
    assert (alone.records, alone.damage) == ([], [Damage(0, nuls, f"{nuls} NUL bytes instead of a record")])


@pytest.mark.parametrize("cut", [1, 4, 5, 8])
def test_a_torn_prefix_does_not_cost_the_record_that_is_stuck_to_it(cut: int) -> None:
    """The prefix is told, with offset and length; the whole record comes back with its own bytes."""
    prefix = line(1, a="b")[:cut]
    decoded = decode_line(prefix + line(2), accept)
    assert [(span.offset, span.raw) for span in decoded.records] == [(cut, line(2))]
    assert [(piece.offset, piece.length) for piece in decoded.damage] == [(0, cut)]
    assert "torn" in decoded.damage[0].reason


def test_a_record_with_a_torn_one_after_it_comes_back() -> None:
    """`A` and a cut `B`: A, and the piece is told."""
    decoded = decode_line(line(1) + line(2)[:5], accept)
    assert [span.value["n"] for span in decoded.records] == [1]
    assert decoded.damage == [Damage(len(line(1)), 5, "a torn record after a whole one")]


def test_two_records_on_one_line_are_two_records() -> None:
    """`}{` between objects is split, also with spaces, also three of them; nothing was lost, so nothing is told."""
    for gap in (b"", b" ", b"\r"):
        decoded = decode_line(gap.join([line(1), line(2), line(3)]), accept)
        assert [span.value["n"] for span in decoded.records] == [1, 2, 3]
        assert decoded.damage == []


def test_junk_between_two_records_costs_neither() -> None:
    """`A`, junk, `B`: both, and the junk is told."""
    decoded = decode_line(line(1) + b"##junk##" + line(2), accept)
    assert [span.value["n"] for span in decoded.records] == [1, 2]
    assert [(piece.offset, piece.length) for piece in decoded.damage] == [(len(line(1)), 8)]


def test_braces_inside_a_text_are_text() -> None:
    """`}{` and a whole record quoted in a string value split nothing, in whole lines and in torn ones."""
    quoting = line(1, text='}{"n": 7}{', more=json.dumps({"n": 8}))
    assert numbers(quoting) == [1]
    assert numbers(quoting[:-1]) == []
    assert numbers(quoting[:9] + quoting) == [1]


def test_an_object_inside_a_torn_record_is_no_record() -> None:
    """Only what counts as a record of this log is given back."""
    torn = b'{"a": {"x": 1}, "b": {"y": 2}, "c'
    decoded = decode_line(torn, accept)
    assert decoded.records == []
    assert decoded.damage == [Damage(0, len(torn), "a torn record")]


@pytest.mark.parametrize(
    "raw,reason",
    [
        (b"[1, 2]", "an array"),
        (b"5", "a number"),
        (b'"text"', "a string"),
        (b"null", "null"),
        (b"true", "true or false"),
        (b"{}", "no n"),
        (b'{"m": 1}', "no n"),
        (b'{"n": 1', "a torn record"),
        (b"not json at all", "not JSON"),
        (b"\xff\xfe\x00\x01", "not JSON"),
        (b'{"a":' * 3000, "a torn record"),
        (b"[" * 3000, "a torn record"),
        (b"{" * 3000, "a torn record"),
    ],
)
def test_what_is_no_record_is_damage_with_a_reason(raw: bytes, reason: str) -> None:
    """Every kind of nonsense gives one piece of damage that covers it, and never an exception."""
    decoded = decode_line(raw, accept)
    assert decoded.records == []
    assert [(piece.offset, piece.length) for piece in decoded.damage] == [(0, len(raw))]
    assert reason in decoded.damage[0].reason


@pytest.mark.parametrize("opening,closing", [(b'{"a":', b"}"), (b'{"a":', b""), (b'{"a":[', b"")])
def test_endless_nesting_is_told_and_costs_no_record_before_it(opening: bytes, closing: bytes) -> None:
    """A line made to be slow: what was found before it is given, the rest is damage, and none is looked at twice."""
    looks = 0

    def counting(value: dict[str, Any]) -> str | None:
        nonlocal looks
        looks += 1
        return accept(value)

    nested = opening * 800 + b"1" + closing * 800
    raw = line(1) + b"x" + nested * 40
    decoded = decode_line(raw, counting)
    assert [span.value["n"] for span in decoded.records] == [1]
    assert [(piece.offset, piece.length) for piece in decoded.damage] == [
        (len(line(1)), len(raw) - len(line(1)))
    ]
    assert looks <= raw.count(b"{")


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(b'{"a":' * 20_000, id="objects that never end"),
        pytest.param(b'{"a":[' * 20_000, id="objects and arrays that never end"),
        pytest.param(b'{"a":' * 300 + b"[" + b"0," * 200_000, id="a long array within many objects"),
        pytest.param(
            b"x" + b'{"a":' * 500 + b"[" + b"0," * 200_000 + b"0]" + b"}" * 500, id="whole, and no records"
        ),
        pytest.param(b'{"' * 60_000 + b'"', id="strings that look like objects from either end"),
        pytest.param(b'{"a":' * 300 + b"9" * 5_000 + b"}" * 300, id="a number too long to read"),
    ],
)
def test_a_record_behind_a_line_made_to_be_slow_is_found(before: bytes) -> None:
    """Each byte is looked at a few times at most, so that there is no need to give up before the record."""
    assert numbers(before + b"\0" + line(7)) == [7]


@pytest.mark.parametrize("digits,read", [(4_300, 10**4_300 - 1), (4_301, math.inf), (50_000, math.inf)])
def test_a_number_too_long_to_read_takes_no_record_with_it(digits: int, read: float) -> None:
    """It is infinite then, on a line of its own and on a torn one; what would be written back is not read so."""
    long = b'{"n": 1, "text": ' + b"9" * digits + b"}"
    for raw in (long, b'{"torn' + long):
        (span,) = decode_line(raw, accept).records
        assert (span.raw, span.value["text"] == read) == (long, True)
    if read == math.inf:
        with pytest.raises(ValueError, match="digits"):
            decode_value(long, exact=True)


def test_a_record_is_found_whichever_quotes_the_torn_one_left_open() -> None:
    """What an earlier start takes for a string is looked into from its own braces on."""
    torn = b'{"n": 1, "text": "an odd {" quote", "more": "'
    assert numbers(torn + line(2, text='a { and a " of its own') + b', "x": "{' + line(3)) == [2, 3]


def test_records_within_what_is_no_record_are_given_once_and_in_order() -> None:
    """An object that is none itself gives those inside it, the outer of two before the inner."""
    inner = b'{"a": [%s, {"b": %s}], "n": "no"}' % (line(1), line(2, inner={"n": 9}))
    assert numbers(b"x" + inner + b'{"a": %s' % inner) == [1, 2, 1, 2]


# --- what a strict decoder refuses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw,value",
    [
        (b'{"n": 1, "text": "a\tb\x01"}', "a\tb\x01"),
        (b'{"n": 1, "text": "a\x00b"}', "a\0b"),
        (b'{"n": 1, "text": "bad \xff utf-8"}', "bad \ufffd utf-8"),
        (b'{"n": 1, "text": "half \\ud83d"}', "half \ud83d"),
        (b'{"n": 1, "text": "\xe2\x80\xa8 is text"}', "\u2028 is text"),
        (b'{"n": 1, "text": 123456789012345678901234567890}', 123456789012345678901234567890),
        (b'{"n": 1, "text": -9223372036854775809}', -9223372036854775809),
        (b'{"n": 1, "text": 18446744073709551616}', 18446744073709551616),
    ],
    ids=["tab", "nul", "bad-utf8", "half-pair", "line-separator", "30-digits", "below-64-bit", "2-to-the-64"],
)
def test_what_old_clients_wrote_loosely_is_read(raw: bytes, value: object) -> None:
    """Raw controls, broken UTF-8, half a pair and integers of any size come through, the last ones exactly."""
    decoded = decode_line(raw, accept)
    assert [span.value["text"] for span in decoded.records] == [value]
    assert [type(span.value["text"]) for span in decoded.records] == [type(value)]
    assert decoded.records[0].raw == raw
    assert decoded.damage == []


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity"])
def test_a_number_that_json_has_not_is_read(word: bytes) -> None:
    """Python's own encoder writes them."""
    value = decode_value(b'{"x": ' + word + b"}")["x"]
    assert isinstance(value, float)
    assert repr(value) == {b"NaN": "nan", b"Infinity": "inf", b"-Infinity": "-inf"}[word]


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a": }', b"[" * 100_000, b"1 2", b"\xff"])
def test_a_value_that_is_none_is_a_value_error(raw: bytes) -> None:
    """Nesting without end included."""
    with pytest.raises(ValueError, match=r"."):
        decode_value(raw)


# --- any damage ----------------------------------------------------------------------------------------------------

PIECES = st.lists(
    st.one_of(
        st.integers(0, 99).map(line),
        st.integers(0, 99).map(lambda n: line(n, text="}{\\u00e9 项目", deep={"a": [1, {"n": 5}]})),
        st.sampled_from(
            [b"\0", b"\xef\xbb\xbf", b"\xbb\xbf", b" ", b"\r", b"{", b"}", b'"', b"\\", b"\xff", b"{}"]
        ),
        st.binary(max_size=6).map(lambda raw: raw.replace(b"\n", b"")),
        st.tuples(st.integers(0, 99), st.integers(0, 30)).map(lambda pair: line(pair[0], a="b")[: pair[1]]),
    ),
    max_size=8,
).map(b"".join)


@given(PIECES)
@example(b"\xef\xbb\xbf\xbb\xbf ")
@example(b"\0" + b'{"n": 1}' + b"\0" + b'{"n": 2}')
def test_whatever_a_line_holds_its_pieces_are_exact_and_nothing_is_hidden(raw: bytes) -> None:
    """Records and damage have their true bytes, do not overlap, and what neither covers is only padding."""
    decoded = decode_line(raw, accept)
    covered = bytearray(len(raw))
    for span in decoded.records:
        assert raw[span.offset : span.offset + len(span.raw)] == span.raw
        assert span.value == decode_value(span.raw)
        assert accept(span.value) is None
        assert not any(covered[span.offset : span.offset + len(span.raw)])
        covered[span.offset : span.offset + len(span.raw)] = b"\1" * len(span.raw)
    assert [span.offset for span in decoded.records] == sorted(span.offset for span in decoded.records)
    hidden = bytearray(raw)
    for index, taken in enumerate(covered):
        if taken:
            hidden[index] = 0x20
    for piece in decoded.damage:
        assert piece.length > 0
        assert 0 <= piece.offset <= piece.offset + piece.length <= len(raw)
        hidden[piece.offset : piece.offset + piece.length] = b" " * piece.length
    assert bytes(hidden).replace(b"\xef\xbb\xbf", b"").strip(b" \t\r\x0b\x0c") == b""


@given(st.lists(st.integers(0, 9).map(lambda n: line(n, text="x" * n)), min_size=1, max_size=5), st.data())
def test_records_glued_after_any_cut_prefix_all_come_back(records: list[bytes], data: st.DataObject) -> None:
    """However long the torn piece in front is."""
    torn = line(1000, text="torn", more=[1, 2, {"k": "v"}])
    cut = data.draw(st.integers(0, len(torn) - 1))
    found = decode_line(torn[:cut] + b"".join(records), accept)
    assert [span.raw for span in found.records] == records


# --- lines of a file -----------------------------------------------------------------------------------------------

LOGS = st.lists(
    st.sampled_from([b"", b"a", b"\r", b"\0", "项\u2028".encode(), b"x" * 50]), max_size=12
).flatmap(lambda lines: st.sampled_from([b"\n".join(lines), b"\n".join(lines) + b"\n"]))


@given(LOGS, st.integers(1, 20))
def test_blocks_of_any_size_give_the_same_lines(data: bytes, size: int) -> None:
    """Offsets included: each line stands where it says, and only the last may lack its newline."""
    with opened(data) as fd:
        lines = []
        ended = True
        for block in iter_blocks(fd, size=size):
            assert ended, "nothing follows a line without newline"
            offset = block.offset
            for each in block.lines:
                lines.append((offset, each))
                offset += len(each) + 1
            ended = block.terminated
        assert lines == list(iter_lines(fd))
        assert b"".join(each + b"\n" for _, each in lines) == data + (b"" if not data or ended else b"\n")
        for offset, each in lines:
            assert data[offset : offset + len(each)] == each


@given(LOGS)
def test_a_log_read_backwards_is_the_log_read_forwards_turned_around(data: bytes) -> None:
    """Line by line, with the same offsets."""
    with opened(data) as fd:
        assert list(iter_lines_backwards(fd, len(data))) == list(iter_lines(fd))[::-1]


@given(LOGS, st.data())
def test_a_part_of_a_log_reads_the_same_both_ways(data: bytes, draw: st.DataObject) -> None:
    """From any line's start to any byte."""
    with opened(data) as fd:
        starts = [offset for offset, _ in iter_lines(fd)] or [0]
        start = draw.draw(st.sampled_from(starts))
        end = draw.draw(st.integers(start, len(data)))
        assert list(iter_lines_backwards(fd, end, start)) == list(iter_lines(fd, start, end))[::-1]


def test_lines_longer_than_any_block_come_whole_both_ways() -> None:
    """Megabytes without a newline, between short ones."""
    lines = [b"first", b"x" * 3_000_000, b"", b"y" * 700_000, b"last"]
    with opened(b"\n".join(lines)) as fd:
        assert [each for _, each in iter_lines(fd)] == lines
        size = sum(map(len, lines)) + len(lines) - 1
        assert [each for _, each in iter_lines_backwards(fd, size)] == lines[::-1]


def test_reading_backwards_reads_no_more_than_it_is_asked_for() -> None:
    """The last line of a large log costs one small read."""
    from kimi_sessions import _fs

    class Counting(_fs.OsFileSystem):
        def __init__(self) -> None:
            self.bytes_read = 0

            def pread(fd: int, length: int, offset: int) -> bytes:
                data = os.pread(fd, length, offset)
                self.bytes_read += len(data)
                return data

            self.pread = pread

    data = b"".join(line(n, text="x" * 100) + b"\n" for n in range(20_000))
    counting = Counting()
    with opened(data) as fd, _fs.using(counting):
        assert next(iter_lines_backwards(fd, len(data)))[1] == line(19_999, text="x" * 100)
    assert counting.bytes_read <= 1 << 14
