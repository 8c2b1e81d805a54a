"""A stand-in for the Hub on this machine: models held in memory, and every way to fail that a test asks for."""

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

CHUNK = 16 * 1024


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


@dataclass
class Repository:
    """A model: its files by name, and the hash of its commit."""

    files: dict[str, bytes]
    commit: str = "a" * 40
    gated: bool = False
    discussions: list[dict[str, object]] = field(default_factory=list)
    revisions: dict[str, "Repository"] = field(default_factory=dict)

    def sibling(self, name: str) -> dict[str, object]:
        content = self.files[name]
        entry = {"rfilename": name, "size": len(content), "blobId": git_sha1(content)}
        if name.endswith((".safetensors", ".bin", ".gguf")):
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"size": len(content), "sha256": digest, "pointerSize": 100}
        return entry


class HubServer:
    """Serves repositories, and counts.

    Attributes:
        repositories: by id.
        sent: bytes sent by file name, one number for each answer.
        requests: "METHOD path" of every request.
        replaced: contents sent in place of those that were announced, by file name.
        break_after: after so many bytes of a file's answer the connection is cut, by file name.
        hold_after: after so many bytes the server waits for `released` before it goes on, by file name.
        status: answers every request with it.
        body: answers every question about a model with it.
        ignores_ranges: sends whole files, whatever was asked for.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.sent: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.replaced: dict[str, bytes] = {}
        self.break_after: dict[str, int] = {}
        self.hold_after: dict[str, int] = {}
        self.released = threading.Event()
        self.status: int | None = None
        self.body: bytes | None = None
        self.ignores_ranges = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_args: None  # A client that hangs up is part of the game.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_args: object) -> None:
            pass

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"GET {path}")
            if hub.status is not None:
                self._refuse(hub.status, "")
            elif path.startswith("/api/models/"):
                self._answer_api(path.removeprefix("/api/models/"))
            else:
                self._answer_file(path.strip("/"))

        def _answer_api(self, path: str) -> None:
            ref, _, revision = path.partition("/revision/")
            is_about_discussions = ref.endswith("/discussions")
            repository = hub.repositories.get(ref.removesuffix("/discussions"))
            if hub.body is not None:
                self._send_body(hub.body)
            elif repository is None:
                self._refuse(401, "RepoNotFound")
            elif is_about_discussions:
                self._send_json(
                    {"discussions": repository.discussions, "count": len(repository.discussions), "start": 0}
                )
            else:
                shown = repository.revisions.get(revision, repository)
                siblings = [shown.sibling(name) for name in shown.files]
                self._send_json({"id": ref, "sha": shown.commit, "siblings": siblings, "gated": shown.gated})

        def _answer_file(self, path: str) -> None:
            ref, _, rest = path.partition("/resolve/")
            commit, _, name = rest.partition("/")
            repository = hub.repositories.get(ref)
            versions = [repository, *repository.revisions.values()] if repository else []
            repository = next((version for version in versions if version.commit == commit), None)
            if repository is None or name not in repository.files:
                self._refuse(404, "EntryNotFound")
            elif repository.gated:
                self._refuse(401, "GatedRepo")
            else:
                self._send_file(name, hub.replaced.get(name, repository.files[name]))

        def _send_file(self, name: str, content: bytes) -> None:
            start = 0
            wanted = self.headers.get("Range")
            if wanted and not hub.ignores_ranges:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(content):
                    self._refuse(416, "")
                    return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            counts = hub.sent.setdefault(name, [])
            counts.append(0)
            position = len(counts) - 1
            for offset in range(start, len(content), CHUNK):
                piece = content[offset : offset + CHUNK]
                sent = counts[position]
                if sent >= hub.break_after.get(name, len(content) + 1):
                    self.wfile.flush()
                    self.close_connection = True
                    self.connection.shutdown(2)
                    return
                if sent >= hub.hold_after.get(name, len(content) + 1):
                    self.wfile.flush()
                    hub.released.wait(30)
                try:
                    self.wfile.write(piece)
                except OSError:  # The client has gone.
                    self.close_connection = True
                    return
                counts[position] += len(piece)

        def _send_json(self, value: object) -> None:
            self._send_body(json.dumps(value).encode())

        def _send_body(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler
