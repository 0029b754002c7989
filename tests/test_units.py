"""Sizes are read as people write them, and written so that they can be read."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import BadInputError, OutOfMemoryError, TenureError, UsageError
from tenure.units import GIB, KIB, MIB, TIB, format_bytes, format_count, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", MIB),
        ("512B", 512),
        ("2MiB", 2 * MIB),
        ("14GiB", 14 * GIB),
        ("5.5GiB", 5 * GIB + 512 * MIB),
        (" 1.5 tib ", TIB + 512 * GIB),
        ("4kib", 4 * KIB),
        ("20MB", 20_000_000),
        ("1.5GB", 1_500_000_000),
        ("0.3KiB", 307),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a size"),
        ("GiB", "not a size"),
        ("-1GiB", "not a size"),
        ("1e9", "not a size"),
        ("1,5GiB", "not a size"),
        ("1GiB2", "not a size"),
        ("٣GiB", "not a size"),
        ("12 GiB free", "not a size"),
        ("5G", "unknown unit 'G'"),
        ("5.5", "bytes come whole"),
        ("5.5B", "bytes come whole"),
    ],
)
def test_what_is_no_size_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (GIB - 1, "1.00 GiB"),
        (round(20.54 * GIB), "20.54 GiB"),
        (80 * TIB, "80.00 TiB"),
        (-3 * MIB, "-3.00 MiB"),
    ],
)
def test_sizes_are_written_with_two_decimals(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(0, 1 << 50))
def test_a_written_size_reads_back_within_its_last_digit(size: int) -> None:
    text = format_bytes(size)
    unit = parse_size(f"1{text.split()[1]}")
    assert abs(parse_size(text) - size) <= unit / 200 + 1


@given(st.integers(0, 1 << 62))
def test_plain_bytes_read_back_exactly(size: int) -> None:
    assert parse_size(str(size)) == size


def test_counts_have_commas() -> None:
    assert format_count(525000) == "525,000"
    assert format_count(999) == "999"


def test_an_out_of_memory_error_crosses_processes_with_its_numbers() -> None:
    error = pickle.loads(pickle.dumps(OutOfMemoryError("no room", 5, 20 * MIB, 7)))
    assert isinstance(error, OutOfMemoryError)
    assert (str(error), error.requested, error.segment, error.stream) == ("no room", 5, 20 * MIB, 7)


def test_exit_codes_are_those_of_the_command_line() -> None:
    errors = (TenureError, UsageError, BadInputError, OutOfMemoryError)
    assert [error.exit_code for error in errors] == [70, 2, 3, 1]
