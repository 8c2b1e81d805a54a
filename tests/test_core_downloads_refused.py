"""What can't be downloaded is refused in a sentence, before its weights where that can be known, and leaves nothing."""

import errno
import gzip
import hashlib
import json
import os
import shutil
import socket
from collections import namedtuple

import pytest
from filelock import FileLock

from core.errors import (
    DownloadError,
    GatedModelError,
    HubUnreachableError,
    ModelNotFoundError,
    ModelUnreadableError,
    NoSpaceError,
    OutriderError,
)
from core.models.catalogue import DEFAULT_TARGET, local_models
from core.models.remote import contents, hub, transfer
from core.models.remote.downloads import download
from tests.fakes_downloads import (
    REF,
    SIZE,
    WEIGHTS,
    content,
    interrupt,
    left_behind,
    model_files,
    refusal,
)
from tests.hub_server import Handler, Repository

pytestmark = pytest.mark.usefixtures("home")

Usage = namedtuple("Usage", "total used free")


def test_no_network(home, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        assert "can't be reached" in refusal(HubUnreachableError)
    assert left_behind(home) == []


def test_a_connection_that_stays_broken_keeps_what_was_received(server, monkeypatch):
    server.break_after[WEIGHTS] = 0
    assert "kept" in refusal(HubUnreachableError)
    assert len(server.sent[WEIGHTS]) == transfer.NUM_RETRIES + 1
    assert "config.json" in [path.name for path in hub.snapshot_folder(REF, "a" * 40).iterdir()]


def test_a_hub_that_stops_responding(server, monkeypatch):
    monkeypatch.setattr(transfer, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(transfer, "NUM_RETRIES", 0)
    server.hold_after[WEIGHTS] = 0
    assert "in time" in refusal(HubUnreachableError)


@pytest.mark.parametrize(("status", "error", "words"), [
    (500, HubUnreachableError, "internal error"), (503, HubUnreachableError, "503"),
    (429, HubUnreachableError, "Wait"), (403, DownloadError, "hf auth login"), (404, ModelNotFoundError, "spelling"),
])  # fmt: skip
def test_a_hub_that_refuses(server, home, status, error, words):
    server.status = status
    assert words in refusal(error)
    assert left_behind(home) == []


def test_a_model_that_does_not_exist(server, home):
    assert "owner/missing" in refusal(ModelNotFoundError, "owner/missing")
    assert left_behind(home) == []


@pytest.mark.parametrize(
    ("ref", "meant"),
    [("gpt2", " Did you mean openai-community/gpt2?"), ("smollm2-135m", " Did you mean HuggingFaceTB/SmolLM2-135M-"),
     ("nothing-like-it", " Write it as the Hub does: owner/model.")],
)  # fmt: skip
def test_a_name_without_an_owner_is_refused_with_the_model_that_is_meant_before_the_hub_is_asked(server, ref, meant):
    assert f"{ref!r} names no owner.{meant}" in refusal(ModelNotFoundError, ref)
    assert server.requests == []


def test_the_embedded_models_are_not_downloaded(server):
    assert "ships with" in refusal(DownloadError, DEFAULT_TARGET)


@pytest.mark.parametrize("ref", ["", "a/b/c", "../secrets", "a--b/c", "owner/", "http://owner/model", "x" * 5_000,
                                 "owner/ünï", "a b", "~/model"])  # fmt: skip
def test_what_is_not_a_hub_id(server, ref):
    assert "is not a Hub id" in refusal(ModelNotFoundError, ref)
    assert server.requests == []


def test_a_gated_model_says_how_to_get_access(server, home):
    server.repositories[REF].gated = True
    message = refusal(GatedModelError)
    assert "licence" in message
    assert "hf auth login" in message
    assert left_behind(home) == []


@pytest.mark.parametrize(("files", "words"), [
    ({"README.md": b""}, "no safetensors"),
    *(({name: b"a", "adapter_config.json": b"{}", **rest}, "is an adapter for another model") for name, rest in (
        ("adapter_model.safetensors", {}), ("adapter_model.safetensors", {"config.json": b"{}"}),
        ("adapter_model.bin", {}), ("model.safetensors", {}))),
    ({"adapter_config.json": b"{}", "adapter_model.safetensors": b"a", "merged.gguf": b"GGUF"}, "'merged.gguf'"),
    ({"model.safetensors": b"m"}, "config.json"),
    ({"README.md": b"", "b.Q8_0.gguf": b"GGUF", "a.Q4_0.gguf": b"GGUF"}, "a.Q4_0.gguf"),
    (model_files(model__safetensors=None, pytorch_model__bin=b"p"), "pickle"),
    (model_files(tokenizer__json=None), "tokenizer"),
    (model_files(tokenizer__json=None, tiktoken__model=b"m", tokenizer_config__json=b'{"auto_map": {}}'), "own code"),
])  # fmt: skip
def test_a_model_that_cant_be_used_is_refused_before_its_weights(server, home, files, words):
    server.repositories[REF] = Repository(files)
    assert words in refusal(ModelUnreadableError)
    assert WEIGHTS not in server.sent
    assert left_behind(home) == []


@pytest.mark.parametrize(("name", "sent", "words"), [
    (WEIGHTS, content(seed=5), "wrong hash"), (WEIGHTS, content()[:-9], f"{SIZE - 9:,} bytes instead of {SIZE:,}"),
    (WEIGHTS, content() + b"more", "instead of"), (WEIGHTS, b"", "has 0 bytes"),
    ("config.json", b"{" * 39, "wrong hash"),
])  # fmt: skip
def test_a_file_that_is_not_what_was_announced_is_removed(server, home, name, sent, words):
    server.replaced[name] = sent
    message = refusal(DownloadError)
    assert words in message
    assert name in message
    assert hub.partial_bytes(REF) == 0
    assert name not in left_behind(home)
    assert REF not in [entry.ref for entry in local_models()]
    server.replaced.clear()
    assert (download(REF).path / WEIGHTS).read_bytes() == content()


def test_missing_space_is_reported_before_the_first_byte(server, home, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**9, 10**9, 64_100_000))
    message = refusal(NoSpaceError)
    assert "64.1 MB is free" in message
    assert server.sent == {}
    assert left_behind(home) == []


def test_a_downloaded_model_needs_no_space(server, monkeypatch):
    kept = interrupt()
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**9, 10**9, 64_000_000 + SIZE - kept))
    download(REF)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_disk_that_fills_up_is_not_left_full(server, home):
    blobs = hub.repository_folder(REF) / "blobs"
    blobs.mkdir(parents=True)
    partial = blobs / f"{hashlib.sha256(content()).hexdigest()}{hub.PARTIAL_SUFFIX}"
    partial.symlink_to("/dev/full")
    assert "disk is full" in refusal(NoSpaceError)
    assert not os.path.lexists(partial)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the rights of a folder do not bind root")
def test_a_cache_that_can_not_be_written(server, home):
    home.mkdir()
    home.chmod(0o500)
    try:
        assert "permissions" in refusal(DownloadError)
    finally:
        home.chmod(0o700)


@pytest.mark.parametrize("restart", [False, True])
def test_a_file_that_another_program_is_fetching_is_left_to_it(server, restart):
    kept, digest = interrupt(), hashlib.sha256(content()).hexdigest()
    with FileLock(hub.lock_folder(REF) / f"{digest}.lock"):
        assert "another program" in refusal(DownloadError, restart=restart)
        assert hub.partial_bytes(REF) == kept
    download(REF)


@pytest.mark.parametrize(("code", "keeps"), [(errno.EIO, True), (errno.ENOSPC, False)])
def test_a_passing_error_of_the_disk_keeps_what_was_received(server, monkeypatch, code, keeps):
    kept = interrupt()

    def fail(_meter, _num_bytes):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(hub.Meter, "count", fail)
        refusal(DownloadError)
    assert (hub.partial_bytes(REF) >= kept) is keeps


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b"\xff"])
def test_an_endpoint_that_is_not_a_hub(server, home, body):
    server.body = body
    assert "HF_ENDPOINT" in refusal(DownloadError)
    assert left_behind(home) == []


def test_an_answer_without_end_is_not_read(server, home, monkeypatch):
    monkeypatch.setattr(contents, "MOST_ANSWER_BYTES", 10_000)
    server.body = b" " * 20_000
    assert "more than" in refusal(DownloadError)
    assert left_behind(home) == []


def test_a_compressed_answer_is_not_unpacked(server, home, monkeypatch):
    bomb = gzip.compress(b" " * 50_000_000)
    monkeypatch.setattr(Handler, "describe", lambda self, _path: self.answer(200, bomb, Content_Encoding="gzip"))
    assert "compressed" in refusal(DownloadError)
    assert left_behind(home) == []


def test_a_download_that_trickles_is_given_up(server, monkeypatch):
    monkeypatch.setattr(transfer, "RATE_SECONDS", 0.0)
    monkeypatch.setattr(transfer, "SLOWEST_RATE", 1 << 60)
    assert "bytes a second" in refusal(HubUnreachableError)


def test_one_that_trickles_over_many_connections_is_given_up(server, monkeypatch):
    server.break_after[WEIGHTS] = 1
    monkeypatch.setattr(transfer, "PAUSE_SECONDS", 0)
    refusal(HubUnreachableError)
    assert len(server.sent[WEIGHTS]) == transfer.NUM_RETRIES + 1


LIES = [
    {"sha": "../../evil"}, {"sha": None}, {"siblings": None}, {"siblings": WEIGHTS}, {"siblings": [{}]},
    {"siblings": [{"rfilename": 3}]}, {"safetensors": 3}, {"createdAt": "never"}, {"self": 3},
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_hub_that_describes_a_model_wrongly(server, home, lie):
    repository = server.repositories[REF]
    truth = {"id": REF, "sha": repository.commit, "siblings": [*map(repository.sibling, repository.files)]}
    server.body = json.dumps(truth | lie).encode()
    refusal(OutriderError)
    assert server.sent == {}
    assert left_behind(home) == []


@pytest.mark.parametrize("lie", [
    {}, {"size": -1}, {"size": "9"}, {"size": 1.5}, {"size": 10**30}, {"blobId": "../../evil"}, {"blobId": ["a" * 40]},
    {"blobId": "a" * 40 + "\n"}, {"lfs": "x"}, {"lfs": {"size": 9, "sha256": "../../evil", "pointerSize": 1}},
])  # fmt: skip
def test_a_hub_that_describes_a_file_wrongly(server, home, monkeypatch, lie):
    truth = Repository.sibling
    monkeypatch.setattr(
        Repository, "sibling", lambda self, name: truth(self, name) | lie if lie else {"rfilename": name}
    )
    sentence = refusal(DownloadError)
    assert lie or "neither size nor hash" in sentence
    assert server.sent == {}
    assert left_behind(home) == []


@pytest.mark.parametrize("name", ["t" * 300 + ".model", "t\0.model", "t\ud800.model"])
def test_a_hub_with_a_file_that_no_disk_takes(server, name):
    server.repositories[REF] = Repository(model_files(**{name: b"t"}))
    refusal(DownloadError)
    assert WEIGHTS not in server.sent


@pytest.mark.parametrize("place", ["describe", "send_content"])
@pytest.mark.parametrize("answer", [
    b"", b"hello\r\n\r\n", b"HTTP/1.1 204 X\r\n\r\n", b"HTTP/1.1 302 X\r\nLocation: http://[::\r\n\r\n",
    b"HTTP/1.1 302 X\r\nLocation: file:///etc/passwd\r\n\r\n",
    b"HTTP/1.1 302 X\r\nLocation: /api/models/owner/tiny-model\r\n\r\n",
    b"HTTP/1.1 200 X\r\nContent-Length: -1\r\n\r\n{}", b"HTTP/1.1 200 X\r\nContent-Length: 99\r\n\r\n{}",
    b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 200 X\r\nX: " + b"y" * 1_000_000,
])  # fmt: skip
def test_a_hub_that_speaks_no_proper_http(server, home, monkeypatch, place, answer):
    def say(handler, *_):
        handler.wfile.write(answer)
        handler.close_connection = True

    monkeypatch.setattr(Handler, place, say)
    refusal(DownloadError)
    assert "config.json" not in left_behind(home)
