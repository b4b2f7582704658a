# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of metrics: two paths, and no client that blocks the others. Driven step by step, without threads."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from hami_hpc.metrics import server as module
from hami_hpc.metrics.exposition import CONTENT_TYPE
from hami_hpc.metrics.server import MAX_CONNECTIONS, MAX_REQUEST_BYTES, Server

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\n"


class Text:
    """Makes the text of metrics, and counts how often."""

    def __init__(self, text: bytes = b"hami_hpc_agent_up 1\n") -> None:
        self.text, self.calls = text, 0

    def __call__(self) -> bytes:
        self.calls += 1
        return self.text


@pytest.fixture
def text() -> Text:
    return Text()


@pytest.fixture
def server(text: Text) -> Iterator[Server]:
    yield from make_server(text)


def make_server(text: Text, token: str = "", host: str = "127.0.0.1") -> Iterator[Server]:
    server = Server(host, 0, text, token)
    yield server
    server.close()


def connect(server: Server, request: bytes = b"") -> socket.socket:
    client = socket.create_connection(server.address)
    client.sendall(request)
    client.setblocking(False)
    return client


def receive(server: Server, client: socket.socket, steps: int = 2000) -> bytes:
    """Returns what the server answers until it closes the connection. Fails when it does not within `steps`."""
    answer = b""
    for _ in range(steps):
        server.step(0.01)
        try:
            while data := client.recv(1 << 16):
                answer += data
        except BlockingIOError:
            continue
        except ConnectionResetError:
            pass
        client.close()
        return answer
    raise AssertionError(f"the server did not close the connection; it has sent {answer[:100]!r}")


def ask(server: Server, request: bytes) -> tuple[int, bytes, bytes]:
    """Returns (status, header, body)."""
    head, _, body = receive(server, connect(server, request)).partition(b"\r\n\r\n")
    return int(head.split()[1]), head, body


def test_metrics_are_served_as_text_with_their_length(server: Server, text: Text) -> None:
    status, head, body = ask(server, GET)
    assert (status, body) == (200, text.text)
    assert f"Content-Type: {CONTENT_TYPE}".encode() in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"Connection: close" in head


def test_a_query_is_ignored_and_head_has_no_body(server: Server, text: Text) -> None:
    assert ask(server, b"GET /metrics?x=1 HTTP/1.0\r\n\r\n")[2] == text.text
    status, head, body = ask(server, b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert (status, body) == (200, b"")
    assert f"Content-Length: {len(text.text)}".encode() in head


def test_healthz_is_of_the_server_and_makes_no_metrics(server: Server, text: Text) -> None:
    assert ask(server, b"GET /healthz HTTP/1.1\r\n\r\n")[::2] == (200, b"ok\n")
    assert text.calls == 0


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        (b"GET / HTTP/1.1", 404),
        (b"GET /metrics/ HTTP/1.1", 404),
        (b"GET /../../etc/passwd HTTP/1.1", 404),
        (b"GET /metrics/../../etc/passwd HTTP/1.1", 404),
        (b"GET /%2e%2e/etc/passwd HTTP/1.1", 404),
        (b"GET file:///etc/passwd HTTP/1.1", 404),
        (b"GET /healthz%00 HTTP/1.1", 404),
        (b"POST /metrics HTTP/1.1", 405),
        (b"DELETE /metrics HTTP/1.1", 405),
        (b"GET /metrics", 400),
        (b"GET /metrics HTTP/2.0", 400),
        (b"GET  /metrics HTTP/1.1", 400),
        (b"", 400),
        (b"\x16\x03\x01\x02\x00", 400),
        (b"\xff\xfe /metrics \x00", 400),
    ],
)
def test_anything_else_is_refused(server: Server, text: Text, request_line: bytes, expected: int) -> None:
    status, _, body = ask(server, request_line + b"\r\n\r\n")
    assert status == expected
    assert len(body) < 100
    assert text.calls == 0


def test_a_request_in_single_bytes_is_answered(server: Server, text: Text) -> None:
    client = connect(server)
    for byte in GET:
        client.sendall(bytes([byte]))
        server.step(0.01)
    assert receive(server, client).endswith(text.text)


def test_a_request_without_end_is_refused_at_its_limit(server: Server) -> None:
    client = connect(server, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * MAX_REQUEST_BYTES)
    assert receive(server, client).startswith(b"HTTP/1.1 431")


def test_a_client_that_sends_nothing_is_dropped_at_its_deadline(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECTION_SECONDS", 0.05)
    assert receive(server, connect(server, b"GET /met")) == b""


def test_a_client_that_leaves_in_the_middle_harms_nobody(server: Server, text: Text) -> None:
    for request in (b"", b"GET /met", GET):
        client = connect(server, request)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close sends a reset
        client.close()
    for _ in range(10):
        server.step(0.01)
    assert ask(server, GET)[2] == text.text


def test_silent_clients_that_hold_every_connection_do_not_lock_out_the_next(server: Server, text: Text) -> None:
    silent = [connect(server, b"GET /met") for _ in range(MAX_CONNECTIONS)]
    for _ in range(2 * MAX_CONNECTIONS):
        server.step(0.001)
    status, _, body = ask(server, GET)
    assert (status, body) == (200, text.text)
    server.step(0.01)
    still_open = 0
    for client in silent:
        try:
            still_open += client.recv(1) != b""
        except BlockingIOError:
            still_open += 1
        except ConnectionResetError:
            pass
        client.close()
    assert still_open == MAX_CONNECTIONS - 1, "one, the oldest, has made room"


def test_an_answer_on_its_way_is_not_given_up_for_silent_clients(text: Text) -> None:
    text.text = b"# " + b"x" * (8 << 20) + b"\n"
    for server in make_server(text):
        first = connect(server, GET)
        for _ in range(20):
            server.step(0.01)
        silent = []
        for _ in range(2 * MAX_CONNECTIONS):
            silent.append(connect(server))
            server.step(0.01)
        assert receive(server, first).endswith(text.text)
        for client in silent:
            client.close()


def test_a_client_that_does_not_read_gets_its_deadline_and_blocks_nobody(text: Text) -> None:
    text.text = b"# " + b"x" * (8 << 20) + b"\n"
    for server in make_server(text):
        slow = connect(server, GET)
        for _ in range(20):
            server.step(0.01)
        assert ask(server, b"GET /healthz HTTP/1.1\r\n\r\n")[0] == 200
        connection = next(iter(server._connections.values()))
        connection.deadline = 0.0
        server.step(0.0)
        assert server._connections == {}
        slow.close()


def test_a_large_text_arrives_whole(text: Text) -> None:
    text.text = b"".join(b"metric %d\n" % number for number in range(300_000))
    for server in make_server(text):
        assert ask(server, GET)[2] == text.text


def test_many_requests_make_the_text_once_a_second(server: Server, text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(20):
        assert ask(server, GET)[0] == 200
    assert text.calls == 1
    monkeypatch.setattr(module, "CACHE_SECONDS", 0.0)
    server._cached_until = 0.0
    text.text = b"new 1\n"
    assert ask(server, GET)[2] == b"new 1\n"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"Authorization: Bearer s3cret", 200),
        (b"authorization:bearer  s3cret ", 200),
        (b"Authorization: Bearer s3cre", 401),
        (b"Authorization: Basic s3cret", 401),
        (b"Authorization: s3cret", 401),
        (b"Authorization: Bearer \xff", 401),
        (b"X: y", 401),
    ],
)
def test_with_a_token_the_metrics_need_it(text: Text, header: bytes, expected: int) -> None:
    for server in make_server(text, "s3cret"):
        assert ask(server, b"GET /metrics HTTP/1.1\r\n" + header + b"\r\n\r\n")[0] == expected
        assert text.calls == (expected == 200)
        assert ask(server, b"GET /healthz HTTP/1.1\r\n\r\n")[0] == 200


def test_it_listens_on_ipv6(text: Text) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    for server in make_server(text, host="::1"):
        assert server.address[0] == "::1"
        assert ask(server, GET)[0] == 200
