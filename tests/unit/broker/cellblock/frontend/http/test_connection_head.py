"""Heads of requests: how large they may be, and what may be read in two ways."""

from __future__ import annotations

import h11
import pytest

from cellblock.frontend.http.connection import MAX_HEADER_BYTES, StrictConnection, fault_of


def head_of(size: int) -> bytes:
    start = b"GET / HTTP/1.1\r\nHost: a\r\nX: "
    return start + b"x" * (size - len(start) - 4) + b"\r\n\r\n"


def test_the_bound_holds_at_its_number_whatever_follows() -> None:
    for rest in (b"", b"x" * 100_000, head_of(100)):
        assert fault_of(head_of(MAX_HEADER_BYTES) + rest) is None
        assert fault_of(head_of(MAX_HEADER_BYTES + 1) + rest) is not None
    assert fault_of(b"G" * MAX_HEADER_BYTES) is None, "it may yet end"
    assert fault_of(b"G" * (MAX_HEADER_BYTES + 1)) is not None


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 4",
        b"content-length:4",
        b"Transfer-Encoding: chunked",
        b"X-Content-Length: 4\r\nContent-Length: 4",
        b"Accept: a, b\r\nContent-Length: 4",
    ],
)
def test_what_says_it_once_is_read(lines: bytes) -> None:
    assert (
        fault_of(b"POST / HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\n\r\nbody: Content-Length: 3\r\n") is None
    )


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked",
        b"transfer-encoding: chunked\r\nCONTENT-LENGTH: 0",
        b"Content-Length: 4\r\nHost: b\r\nContent-Length: 4",
        b"Content-Length: 4,4",
        b"Transfer-Encoding: gzip, chunked",
        b"Content-Length : 4\r\nContent-Length: 4",
        b"X: a\r\n b",
        b"X: a\r\n\tb",
        b"X: a\nY: b",
    ],
)
def test_what_can_be_read_in_two_ways_is_not(lines: bytes) -> None:
    data = b"POST / HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\n\r\n"
    assert fault_of(data) is not None
    connection = StrictConnection(h11.SERVER)
    connection.receive_data(data)
    with pytest.raises(h11.RemoteProtocolError):
        connection.next_event()


def test_chunks_are_of_http_1_1() -> None:
    for version, fine in ((b"1.1", True), (b"1.0", False)):
        data = b"POST / HTTP/" + version + b"\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert (fault_of(data) is None) == fine
