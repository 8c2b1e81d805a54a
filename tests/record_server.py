"""Records what a real server answers, for the fakes: `python -m tests.record_server vllm http://127.0.0.1:8123 FOLDER`.

One JSON file per request, described in tests/recordings/README.md. tests/servers.md says how to start the servers.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import time
import urllib.parse
from pathlib import Path
from typing import Any

from core.files import write_atomically

MODEL = "smol"
CHAT = [{"role": "user", "content": "Write the numbers from one to ten in words, twice."}]
RAW = "One, two, three, four, five. One, two, three,"
STREAM = {"model": MODEL, "max_tokens": 24, "stream": True}
USAGE = {"stream_options": {"include_usage": True}}
BAD = {"model": MODEL, "max_tokens": 4, "messages": CHAT}
KEPT_METRICS = ("vllm:", "llamacpp:", "# TYPE vllm:", "# TYPE llamacpp:")
DROPPED = re.compile("_bucket[{]|_created\\b")
KEPT_HEADERS = {"content-type", "retry-after", "server", "transfer-encoding", "www-authenticate"}

Case = tuple[str, str, dict[str, Any] | str | None]
"""A method, a path, and a body: JSON, or text that is no JSON."""


def cases(product: str) -> dict[str, Case]:
    """The requests, by the name of the file that keeps the answer, in the order in which they are sent."""
    sampling = {"greedy": {"temperature": 0}, "sampled": {"temperature": 0.7, "seed": 7}}
    found: dict[str, Case] = {
        name: ("GET", path, None)
        for name, path in {
            **{"version": "/version", "models": "/v1/models", "props": "/props", "health": "/health"},
            **{"unknown-path": "/nowhere", "metrics-before": "/metrics"},
        }.items()
    }
    for name, values in sampling.items():
        chat = {**STREAM, **USAGE, "messages": CHAT, "logprobs": True, "top_logprobs": 2, **values}
        found[f"chat-{name}"] = ("POST", "/v1/chat/completions", chat)
        raw = {**STREAM, **USAGE, "prompt": RAW, "logprobs": 2, **values}
        found[f"completion-{name}"] = ("POST", "/v1/completions", raw)
    plain = {**STREAM, **USAGE, "messages": CHAT, "temperature": 0}
    if product == "vllm":
        found["chat-token-ids"] = ("POST", "/v1/chat/completions", {**plain, "return_token_ids": True})
        found["completion-one-token"] = (
            "POST",
            "/v1/completions",
            {"model": MODEL, "prompt": RAW, "max_tokens": 1, "n": 4, "temperature": 0.7, "seed": 7, "logprobs": 5},
        )
        found["tokenize"] = ("POST", "/tokenize", {"model": MODEL, "messages": CHAT})
    else:
        found["chat-timings-per-token"] = ("POST", "/v1/chat/completions", {**plain, "timings_per_token": True})
        native = {"prompt": RAW, "n_predict": 24, "stream": True, "temperature": 0, "return_tokens": True}
        found["native-completion"] = ("POST", "/completion", native)
        found["tokenize"] = ("POST", "/tokenize", {"content": RAW, "add_special": True})
    # As Outrider's own engine asks.
    reports = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "return_token_ids": True}
    for name, values in sampling.items():
        if product == "vllm":
            chat = {**STREAM, **reports, "messages": CHAT, "logprobs": True, "top_logprobs": 0, **values}
            found[f"run-chat-{name}"] = ("POST", "/v1/chat/completions", chat)
            raw = {**STREAM, **reports, "prompt": RAW, "logprobs": 0, **values}
            found[f"run-raw-{name}"] = ("POST", "/v1/completions", raw)
        else:
            found["apply-template"] = ("POST", "/apply-template", {"messages": CHAT})
            own = {"prompt": RAW, "n_predict": 24, "stream": True, "return_tokens": True, "timings_per_token": True}
            found[f"run-raw-{name}"] = ("POST", "/completion", {**own, **values})
    if product == "llama":
        found["slots"] = ("GET", "/slots", None)
    found |= {
        "chat-whole": ("POST", "/v1/chat/completions", {**BAD, "temperature": 0, "max_tokens": 24}),
        "error-unknown-model": ("POST", "/v1/chat/completions", {**BAD, "model": "no-such-model"}),
        "error-temperature": ("POST", "/v1/chat/completions", {**BAD, "temperature": -1}),
        "error-no-messages": ("POST", "/v1/chat/completions", {"model": MODEL, "max_tokens": 4}),
        "error-not-json": ("POST", "/v1/chat/completions", "{"),
        "error-too-long": (
            "POST",
            "/v1/chat/completions",
            {**BAD, "messages": [{"role": "user", "content": "a " * 1200}]},
        ),
        "metrics-after": ("GET", "/metrics", None),
    }
    return found


def record(url: str, case: Case, key: str = "") -> dict[str, Any]:
    """Send one request and keep the answer, chunk by chunk with the time of its arrival."""
    method, path, body = case
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=300)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    start = time.perf_counter()
    connection.request(method, path, body if body is None or isinstance(body, str) else json.dumps(body), headers)
    response = connection.getresponse()
    chunks: list[tuple[float, bytes]] = []
    while piece := response.read1():
        chunks.append((round((time.perf_counter() - start) * 1000, 1), piece))
    connection.close()
    if path == "/metrics":
        lines = b"".join(piece for _, piece in chunks).decode().splitlines()
        kept = "".join(f"{line}\n" for line in lines if line.startswith(KEPT_METRICS) and not DROPPED.search(line))
        chunks = [(chunks[-1][0], kept.encode())]
    return {
        "request": {"method": method, "path": path, "body": body},
        "status": response.status,
        "headers": {name: value for name, value in response.getheaders() if name.lower() in KEPT_HEADERS},
        "chunks": [[at, piece.decode()] for at, piece in chunks],
    }


def as_text(answer: dict[str, Any]) -> str:
    """JSON with one chunk per line, for readable differences."""
    head = json.dumps({name: value for name, value in answer.items() if name != "chunks"}, ensure_ascii=False)
    chunks = ",\n".join(json.dumps(chunk, ensure_ascii=False) for chunk in answer["chunks"])
    return f'{head[:-1]}, "chunks": [\n{chunks}\n]}}\n'


def main() -> None:
    """Record every case into a folder, or, with --only, one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("product", choices=["vllm", "llama"])
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", help="record only these cases")
    parser.add_argument("--wrong-key", action="store_true", help="record only what the server answers to a wrong key")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    chosen: dict[str, Case] = cases(args.product)
    key = os.environ.get("OUTRIDER_API_KEY", "")
    if args.wrong_key:
        key = "wrong"
        chosen = {
            "error-wrong-key": ("POST", "/v1/chat/completions", BAD),
            "health-wrong-key": ("GET", "/health", None),
        }
    for name, case in chosen.items():
        if args.only and name not in args.only:
            continue
        answer = record(args.url, case, key)
        write_atomically(args.folder / f"{name}.json", as_text(answer))
        print(answer["status"], name, len(answer["chunks"]), "chunks", flush=True)


if __name__ == "__main__":
    main()
