"""A small HTTP/2 site over TLS, with vices that only HTTP/2 has."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading

import h2.config
import h2.connection
import h2.events

PAGE = b"<h1>An HTTP/2 page</h1>"


class H2Site:
    """A thread a connection; records the requests' paths and the connections."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        tls.set_alpn_protocols(["h2"])
        self.targets: list[str] = []
        self.connections = 0
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> H2Site:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def url(self, path: str) -> str:
        """The absolute URL of a path."""
        return f"https://127.0.0.1:{self.port}{path}"

    def _spawn(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]  # a method
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                self.connections += 1
                self._spawn(self._serve, plain)

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), plain, self._tls.wrap_socket(plain, server_side=True) as sock:
            self._sockets.append(sock)
            connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
            connection.initiate_connection()
            sock.sendall(connection.data_to_send())
            while data := sock.recv(65_536):
                for event in connection.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        self._answer(connection, event, sock)
                sock.sendall(connection.data_to_send())

    def _answer(
        self, connection: h2.connection.H2Connection, event: h2.events.RequestReceived, sock: socket.socket
    ) -> None:
        path = dict(event.headers or ())[b":path"].decode()
        stream = event.stream_id
        assert stream is not None
        self.targets.append(path)
        length = "1000000" if path != "/page" else str(len(PAGE))
        connection.send_headers(
            stream,
            [(":status", "200"), ("content-type", "text/html"), ("content-length", length)][: 3 if length else 2],
        )
        connection.send_data(stream, PAGE, end_stream=path == "/page")
        if path == "/cuts-stream":
            connection.reset_stream(stream, error_code=2)
        if path == "/cuts-connection":
            sock.sendall(connection.data_to_send())
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
