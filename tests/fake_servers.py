"""Small servers on 127.0.0.1 that answer as the real ones did: from tests/recordings, or with a fault.

SGLang does not run on the machine of the recordings; its fake follows SGLang's source and documentation.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from core.settings import RunRequest

RECORDINGS = Path(__file__).parent / "recordings"
CERTIFICATE = Path(__file__).parent / "self_signed.pem"
SSE = {"content-type": "text/event-stream; charset=utf-8"}
JSON = {"content-type": "application/json"}


class Fault(Enum):
    """What a stream does in place of its next chunk."""

    DIES = "dies"
    """The connection is cut."""
    WAITS = "waits"
    """Nothing is sent until the client hangs up."""


@dataclass(frozen=True)
class Answer:
    """An answer: its body in the pieces in which it is sent."""

    chunks: Sequence[str | Fault]
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: JSON)

    def cut(self, count: int, *more: str | Fault) -> Answer:
        """This answer's first pieces, then others."""
        return replace(self, chunks=(*self.chunks[:count], *more))


def a_request(**more: Any) -> RunRequest:
    """A request for a run of 24 tokens on a server."""
    return RunRequest(
        **{"target": "smol", "draft": None, "prompt": "Go", "max_new_tokens": 24, "num_draft_tokens": None, **more}
    )


def as_json(value: Any, status: int = 200, **headers: str) -> Answer:
    return Answer([json.dumps(value)], status, {**JSON, **headers})


def as_stream(events: Sequence[Any]) -> Answer:
    return Answer([f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"], 200, SSE)


def recorded(folder: str, name: str) -> Answer:
    """What a real server answered."""
    found = json.loads((RECORDINGS / folder / f"{name}.json").read_text("utf-8"))
    return Answer([text for _, text in found["chunks"]], found["status"], found["headers"])


def in_pairs(answer: Answer) -> Answer:
    """The same stream with every two pieces of text sent at once, as vLLM does under load."""
    first, *pieces, last = (json.loads(str(chunk).removeprefix("data: ")) for chunk in answer.chunks[:-1])
    for one, other in zip(pieces[::2], pieces[1::2], strict=False):
        kept, more = one["choices"][0], other["choices"][0]
        kept["delta"]["content"] += more["delta"]["content"]
        kept["logprobs"]["content"] += more["logprobs"]["content"]
        kept["token_ids"] += more["token_ids"]
        kept["finish_reason"] = more["finish_reason"]
    return as_stream([first, *pieces[::2], last])


class FakeServer:
    """Gives each path its answer, or its answers in turn, of which the last stays; an answer may be made of the body.

    Attributes:
        requests: path, headers and body of each request.
        hung_up: set as soon as a client has ended a stream that waits.
    """

    def __init__(self, answers: dict[str, Answer | list[Answer]], *, key: str = "", tls: bool = False) -> None:
        self.answers = {path: answer if isinstance(answer, list) else [answer] for path, answer in answers.items()}
        self.key = key
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.hung_up = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": self}))
        self._http.daemon_threads = True
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.005}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def bodies(self, path: str) -> list[Any]:
        """The bodies that were sent to a path."""
        return [body for where, _, body in self.requests if where == path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # Otherwise a small answer waits 40 ms for the client's acknowledgement.
    fake: FakeServer
    has_streamed = False

    def log_message(self, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _answer(self, body: Any) -> None:
        fake = self.fake
        if self.has_streamed:  # As llama-server, which ends a connection after a stream without saying so.
            self.close_connection = True
            return
        fake.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        found = fake.answers.get(self.path)
        if fake.key and self.headers.get("authorization") != f"Bearer {fake.key}":
            answer = as_json({"error": {"message": f"Invalid key {self.headers.get('authorization')}"}}, 401)
        elif found is None:
            answer = as_json({"detail": "Not Found"}, 404)
        else:
            answer = found.pop(0) if len(found) > 1 else found[0]
            answer = answer(body) if callable(answer) else answer
        self.has_streamed = "event-stream" in str(answer.headers)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in {"transfer-encoding", "server"}:
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for chunk in answer.chunks:
                if isinstance(chunk, Fault):
                    self.wfile.flush()
                    if chunk is Fault.WAITS:
                        while self.connection.recv(4096):
                            pass
                        fake.hung_up.set()
                    self.close_connection = True
                    return
                data = chunk.encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            fake.hung_up.set()
            self.close_connection = True


# --- Products -----------------------------------------------------------------------------------------------------


def vllm(folder: str = "vllm-draft", **more: Answer | list[Answer]) -> dict[str, Answer | list[Answer]]:
    """What vLLM answers; `more` replaces answers by name: chat, raw, metrics, models."""
    return {
        "/version": recorded(folder, "version"),
        "/v1/models": more.get("models") or recorded(folder, "models"),
        "/metrics": more.get("metrics") or [recorded(folder, "metrics-before"), recorded(folder, "metrics-after")],
        "/v1/chat/completions": more.get("chat") or recorded(folder, "run-chat-greedy"),
        "/v1/completions": more.get("raw") or recorded(folder, "run-raw-sampled"),
    }


def llama_server(folder: str = "llama-draft", **more: Answer | list[Answer]) -> dict[str, Answer | list[Answer]]:
    """What llama-server answers; `more` replaces answers by name: raw, metrics."""
    return {
        "/v1/models": recorded(folder, "models"),
        "/props": recorded(folder, "props"),
        "/slots": recorded(folder, "slots"),
        "/metrics": more.get("metrics", recorded(folder, "metrics-after")),
        "/apply-template": recorded(folder, "apply-template"),
        "/completion": more.get("raw", recorded(folder, "run-raw-greedy")),
    }


SGLANG_METRICS = """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="tiny",tp_rank="0"} 1.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="tiny",tp_rank="0"} 2.0
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{model_name="tiny",tp_rank="0"} 2.5
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="tiny"} 110.0
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{model_name="tiny"} 10.0
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{model_name="tiny"} 40.0
"""


def sglang(*, is_new: bool = True, reports_steps: bool = True) -> dict[str, Answer | list[Answer]]:
    """What SGLang answers: a chain of 3 drafted tokens, one fully accepted, one rejected at its second token.

    Args:
        is_new: use the names of newer versions for the counts.
        reports_steps: report the sums in each chunk; else only at the end.
    """
    drafted, accepted = (
        ("spec_num_proposed_drafts", "spec_num_correct_drafts")
        if is_new
        else ("spec_draft_token_num", "spec_accept_token_num")
    )
    words = ["One", " two", " three", " four", " five", " six", " seven"]
    events = []
    for count, sums in ((1, (0, 0, 0)), (5, (1, 3, 3)), (7, (2, 6, 4))):
        is_last = count == len(words)
        meta: dict[str, Any] = {
            "prompt_tokens": 4,
            "completion_tokens": count,
            "output_token_logprobs": [[-0.5, 100 + place, word] for place, word in enumerate(words[:count])],
            "finish_reason": {"type": "length", "length": 7} if is_last else None,
        }
        if reports_steps or is_last:
            meta |= dict(zip(("spec_verify_ct", drafted, accepted), sums, strict=True))
        text = "".join(words[:count])
        events.append({"text": text, "output_ids": list(range(100, 100 + count)), "meta_info": meta})
    info = {
        "model_path": "/models/tiny",
        "version": "0.5.15",
        "context_length": 2048,
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "speculative_num_draft_tokens": 4,
    }
    models = {"object": "list", "data": [{"id": "tiny", "owned_by": "sglang", "max_model_len": 2048}]}
    return {
        "/v1/models": as_json(models),
        ("/server_info" if is_new else "/get_server_info"): as_json(info),
        "/metrics": Answer([SGLANG_METRICS], 200, {"content-type": "text/plain"}),
        "/generate": as_stream(events),
    }
