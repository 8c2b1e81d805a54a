"""A stand-in for the Hub on this machine: models held in memory, and every way to fail that a test asks for."""

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

CHUNK = 16 * 1024


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
        sha1 = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        entry = {"rfilename": name, "size": len(content), "blobId": sha1}
        if name.endswith((".safetensors", ".bin", ".gguf")):
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"size": len(content), "sha256": digest, "pointerSize": 100}
        return entry


class HubServer(ThreadingHTTPServer):
    """Serves repositories, and counts.

    Attributes:
        repositories: by id.
        sent: bytes sent by file name, one number for each answer.
        requests: the path of every request.
        replaced: contents sent in place of those that were announced, by file name.
        break_after: after so many bytes of a file's answer the connection is cut, by file name.
        hold_after: after so many bytes the server waits for `released` before it goes on, by file name.
        status: answers every request with it.
        body: answers every question about a model with it.
        ignores_ranges: sends whole files, whatever was asked for.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
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
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_args: object) -> None:
        pass  # A client that hangs up is part of the game.

    def close(self) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()
        self.thread.join()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # As in fake_servers.
    server: HubServer

    def log_message(self, *_args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(path)
        if self.server.status is not None:
            self.answer(self.server.status)
        elif path.startswith("/api/models/"):
            self.describe(path.removeprefix("/api/models/"))
        else:
            self.send_file(path.strip("/"))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def describe(self, path: str) -> None:
        ref, _, revision = path.partition("/revision/")
        repository = self.server.repositories.get(ref.removesuffix("/discussions"))
        if self.server.body is not None:
            self.answer(200, self.server.body)
            return
        if repository is None:
            self.answer(401, X_Error_Code="RepoNotFound")
            return
        if ref.endswith("/discussions"):
            found = {"discussions": repository.discussions, "count": len(repository.discussions), "start": 0}
        else:
            shown = repository.revisions.get(revision, repository)
            siblings = [shown.sibling(name) for name in shown.files]
            found = {"id": ref, "sha": shown.commit, "siblings": siblings, "gated": shown.gated}
        self.answer(200, json.dumps(found).encode(), Content_Type="application/json")

    def send_file(self, path: str) -> None:
        ref, _, rest = path.partition("/resolve/")
        commit, _, name = rest.partition("/")
        repository = self.server.repositories.get(ref)
        versions = [repository, *repository.revisions.values()] if repository else []
        repository = next((version for version in versions if version.commit == commit), None)
        if repository is None or name not in repository.files:
            self.answer(404, X_Error_Code="EntryNotFound")
        elif repository.gated:
            self.answer(401, X_Error_Code="GatedRepo")
        else:
            self.send_content(name, self.server.replaced.get(name, repository.files[name]))

    def send_content(self, name: str, content: bytes) -> None:
        hub, start = self.server, 0
        wanted = self.headers.get("Range")
        if wanted and not hub.ignores_ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.answer(416)
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
            if counts[position] >= hub.break_after.get(name, len(content) + 1):
                self.close_connection = True
                self.connection.shutdown(2)
                return
            if counts[position] >= hub.hold_after.get(name, len(content) + 1):
                hub.released.wait(30)
            piece = content[offset : offset + CHUNK]
            self.wfile.write(piece)
            counts[position] += len(piece)
