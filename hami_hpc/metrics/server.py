# SPDX-License-Identifier: Apache-2.0
"""An HTTP server for /metrics and /healthz alone: one thread, few connections, small requests, short deadlines."""

from __future__ import annotations

import hmac
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from hami_hpc.metrics.exposition import CONTENT_TYPE

MAX_CONNECTIONS = 32
MAX_REQUEST_BYTES = 8192
CONNECTION_SECONDS = 10.0  # from accept to the answer's last byte
CACHE_SECONDS = 1.0  # the agent looks once a second: more requests than that get the same text
PLAIN = "text/plain; charset=utf-8"
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
}


@dataclass(slots=True, eq=False)
class _Connection:
    socket: socket.socket
    deadline: float
    request: bytes = b""
    answer: memoryview | None = None


class Server:
    """Answers until an exception ends `serve`. `make_text` returns the metrics; it is called once a second at most.

    With a `token`, /metrics needs the header `Authorization: Bearer TOKEN`.
    """

    def __init__(self, host: str, port: int, make_text: Callable[[], bytes], token: str = "") -> None:
        """Binds and listens. Raises OSError when that fails."""
        self._make_text, self._token = make_text, token.encode()
        self._cached, self._cached_until = b"", 0.0
        self._connections: dict[socket.socket, _Connection] = {}  # the oldest first
        self._selector = selectors.DefaultSelector()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def serve(self) -> None:
        """Answers requests for ever. Closes all sockets when an exception (SystemExit, KeyboardInterrupt) ends it."""
        try:
            while True:
                self.step()
        finally:
            self.close()

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection)
        self._selector.close()
        self._listener.close()

    def step(self, seconds: float | None = None) -> None:
        """Waits for one event, or until the next deadline, or for `seconds`; then handles what there is."""
        now = time.monotonic()
        waits = [] if seconds is None else [seconds]
        waits += [max(0.0, oldest.deadline - now) for oldest in list(self._connections.values())[:1]]
        for key, _ in self._selector.select(min(waits, default=None)):
            if key.fileobj is self._listener:
                self._accept()
                continue
            connection = self._connections.get(key.fileobj)  # type: ignore[call-overload]  # only sockets are registered
            if connection is not None:  # else an accept of this round has closed it
                self._advance(connection)
        now = time.monotonic()
        for connection in [late for late in self._connections.values() if late.deadline <= now]:
            self._close(connection)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # the client has gone
            return
        if len(self._connections) >= MAX_CONNECTIONS:  # one who holds all of them must not lock out the next
            oldest = list(self._connections.values())
            self._close(next((one for one in oldest if one.answer is None), oldest[0]))
        client.setblocking(False)
        self._connections[client] = _Connection(client, time.monotonic() + CONNECTION_SECONDS)
        self._selector.register(client, selectors.EVENT_READ)

    def _close(self, connection: _Connection) -> None:
        del self._connections[connection.socket]
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _advance(self, connection: _Connection) -> None:
        try:
            if connection.answer is None:
                self._read(connection)
            if connection.answer is not None:
                sent = connection.socket.send(connection.answer)
                connection.answer = connection.answer[sent:]
                if not connection.answer:
                    self._close(connection)
        except BlockingIOError:
            return
        except OSError:  # the client has gone
            self._close(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.socket.recv(MAX_REQUEST_BYTES)
        connection.request += data
        head, end, _ = connection.request.partition(b"\r\n\r\n")
        if end:
            answer = self._answer(head)
        elif len(connection.request) >= MAX_REQUEST_BYTES:
            answer = _response(431)
        elif data:
            return
        else:
            raise ConnectionResetError("the client has sent no whole request")
        connection.answer = memoryview(answer)
        self._selector.modify(connection.socket, selectors.EVENT_WRITE)

    def _answer(self, head: bytes) -> bytes:
        line, *headers = head.split(b"\r\n")
        words = line.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(400)
        method, path = words[0], words[1].partition(b"?")[0]
        if path not in (b"/metrics", b"/healthz"):
            return _response(404)
        if method not in (b"GET", b"HEAD"):
            return _response(405)
        if path == b"/healthz":
            return _response(200, b"ok\n", with_body=method == b"GET")
        if self._token and not self._is_allowed(headers):
            return _response(401)
        return _response(200, self._text(), CONTENT_TYPE, with_body=method == b"GET")

    def _is_allowed(self, headers: list[bytes]) -> bool:
        for header in headers:
            name, _, value = header.partition(b":")
            if name.strip().lower() == b"authorization":
                scheme, _, token = value.strip().partition(b" ")
                return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)
        return False

    def _text(self) -> bytes:
        now = time.monotonic()
        if now >= self._cached_until:
            self._cached = self._make_text()
            self._cached_until = now + CACHE_SECONDS
        return self._cached


def _response(status: int, body: bytes = b"", kind: str = PLAIN, with_body: bool = True) -> bytes:
    """Returns a whole response; the body of an error is its name."""
    body = body or f"{REASONS[status]}\n".encode()
    extra = {401: "WWW-Authenticate: Bearer\r\n", 405: "Allow: GET, HEAD\r\n"}.get(status, "")
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"X-Content-Type-Options: nosniff\r\nConnection: close\r\n{extra}\r\n"
    )
    return head.encode() + (body if with_body else b"")
