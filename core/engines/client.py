"""HTTP with one server: only the given address is contacted, everything is bounded, each fault is one sentence.

No proxy, no .netrc and no redirect: a key and a prompt reach nobody but that address. Certificates are checked
against the system's store. A key never appears in a text or a repr.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Self

import httpx2

from core.engines.address import KEY_VARIABLE, Address
from core.errors import ServerBusyError, ServerError, ServerRefusedError, first_line

CONNECT_S, READ_S, STALL_S, QUEUE_S = 10.0, 20.0, 120.0, 3_600.0
"""Most seconds to connect, between two bytes of a page, between two of a text, and until a text, or the answer to what
is posted, begins: it may wait in a queue, for its model to be loaded, or for its prompt to be read."""
_JSON = {"Content-Type": "application/json"}
MOST_BYTES = 16_000_000
"""Of an answer that is read whole, and of one event of a stream: SGLang repeats the whole text in each."""
_EVENT_BYTES = 4_096
"""What an event takes in memory besides its text. Above `MOST_BYTES` ahead of a paused run, the server has to wait."""
_LOOK_S = 0.1
"""How often a wait for the server checks whether the run was stopped."""


class Client:
    """Requests to one server, for one thread at a time. Close it, or use it in a `with`."""

    def __init__(self, address: Address, key: str | None = None) -> None:
        if key and not (key.isascii() and key.isprintable()):
            raise ServerRefusedError("The API key contains invalid characters; copy it again.")
        self.address = address
        self._secrets = [secret for secret in (key, *(address.login or ())) if secret]
        headers = {"Accept-Encoding": "identity", "User-Agent": "outrider"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._connection: Any = None
        self.began = 0.0
        """The `time.perf_counter` at which `stream` sent its latest request."""
        auth = httpx2.BasicAuth(*address.login) if address.login and not key else None
        self._http = httpx2.Client(
            headers=headers,
            auth=auth,
            trust_env=False,
            follow_redirects=False,
            verify=_certificates(os.environ.get("SSL_CERT_FILE")),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def get_text(self, path: str, *, missing: tuple[int, ...] = ()) -> str | None:
        """The text at a path; None for the statuses in `missing`.

        Raises:
            ServerError: of any kind.
        """
        return self._read("GET", path, None, missing)

    def get(self, path: str, *, missing: tuple[int, ...] = ()) -> Any:
        """The JSON at a path, as `get_text`."""
        text = self.get_text(path, missing=missing)
        return None if text is None else self._parse(text)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that answers a JSON body.

        Raises:
            ServerError: of any kind.
        """
        return self._parse(self._read("POST", path, body, ()) or "")

    def watched(self, request: Callable[[], Any], check_cancelled: Callable[[], None]) -> Any:
        """The result of short requests on this client; `check_cancelled` raising closes its connections."""
        with ThreadPoolExecutor(1, "outrider-request") as pool:
            answer = pool.submit(request)
            try:
                while not wait([answer], _LOOK_S).done:
                    check_cancelled()
            except BaseException:
                self._hang_up()
                while not wait([answer], _LOOK_S).done:  # A connection can be ended only once it is made.
                    self._hang_up()
                raise
            return answer.result()

    def stream(
        self, path: str, body: Mapping[str, Any], check_cancelled: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[float, Any]]:
        """The events of a streamed answer, each with the `time.perf_counter` of its arrival.

        Closing the iterator, or `check_cancelled` raising, closes the connection, at which servers end the request.

        Raises:
            ServerError: of any kind; the events before it were yielded.
        """
        arrivals: queue.SimpleQueue[tuple[float, Any, int]] = queue.SimpleQueue()
        stopped = threading.Event()
        num_read = num_taken = 0
        answer: httpx2.Response | None = None

        def put(item: Any, size: int = 0) -> bool:
            """Whether somebody still waits for more."""
            nonlocal num_read
            at = time.perf_counter()
            num_read += size
            while num_read - num_taken > MOST_BYTES and not arrivals.empty():
                if stopped.wait(_LOOK_S):
                    return False
            arrivals.put((at, item, size))
            return not stopped.is_set()

        def read() -> None:
            nonlocal answer
            try:
                with self.explaining(), self._send(path, body) as response:
                    answer = response
                    self.check(response)
                    response.encoding = "utf-8-sig"  # A stream of events may begin with a byte order mark.
                    for event in httpx2.EventSource(response, MOST_BYTES):
                        if not (data := event.data.strip()):
                            continue  # Such as a sign of life.
                        if data == "[DONE]" or not put(self._parse_event(data), _EVENT_BYTES + len(data)):
                            break
                put(None)
            except BaseException as error:
                put(error)

        self.began = time.perf_counter()
        # In its own thread, so that arrival times stay right while the run is paused, and a stop is prompt.
        reader = threading.Thread(target=read, name="outrider-stream", daemon=True)
        reader.start()
        since, num_bytes = time.monotonic(), 0
        try:
            while True:
                check_cancelled()
                try:
                    at, item, size = arrivals.get(timeout=_LOOK_S)
                except queue.Empty:
                    now, before = time.monotonic(), num_bytes
                    num_bytes = answer.num_bytes_downloaded if answer is not None else 0
                    since = now if num_bytes > before else since
                    if now - since > (STALL_S if num_bytes else QUEUE_S):
                        where = "stopped sending in the middle of" if num_bytes else "hasn't begun"
                        raise ServerError(f"{self.address} {where} an answer. Check its log.") from None
                    continue
                num_taken += size
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield at, item
        finally:
            stopped.set()
            while reader.is_alive():  # A connection can be ended only once it is made.
                self._hang_up()
                reader.join(_LOOK_S)

    def _send(self, path: str, body: Mapping[str, Any]) -> contextlib.AbstractContextManager[httpx2.Response]:
        # How long a text may take, `stream` decides.
        timeout = httpx2.Timeout(STALL_S, connect=CONNECT_S, read=None)
        return self._http.stream(
            "POST",
            self.address.url + path,
            content=_encoded(body),
            timeout=timeout,
            # llama-server closes the connection after a stream without saying so; a request sent on it would be lost.
            headers={**_JSON, "Accept": "text/event-stream", "Connection": "close"},
            extensions={"trace": self._on_trace},
        )

    def _on_trace(self, name: str, info: Mapping[str, Any]) -> None:
        if name in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
            self._connection = info["return_value"]

    def _hang_up(self) -> None:
        """End the connection from outside the reading thread, which then raises."""
        # Closing a response is not safe from another thread; ending its socket wakes the reader.
        with contextlib.suppress(Exception):
            self._connection.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def _read(self, method: str, path: str, body: Mapping[str, Any] | None, missing: tuple[int, ...]) -> str | None:
        with self.explaining():
            trace, url = {"trace": self._on_trace}, self.address.url + path
            # What is posted may have to wait until a model is loaded.
            timeout = httpx2.Timeout(READ_S, connect=CONNECT_S, read=READ_S if body is None else QUEUE_S)
            sent: dict[str, Any] = {} if body is None else {"content": _encoded(body), "headers": _JSON}
            with self._http.stream(method, url, timeout=timeout, extensions=trace, **sent) as response:
                if response.status_code in missing:
                    return None
                self.check(response)
                return self.read_whole(response)

    def read_whole(self, response: httpx2.Response) -> str:
        """A bounded answer as text."""
        data = bytearray()
        for part in response.iter_raw():
            data += part
            if len(data) > MOST_BYTES:
                raise ServerError(f"{self.address} sent more than {MOST_BYTES // 1_000_000} MB in one response.")
        return data.decode("utf-8", "replace")

    def _parse(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise ServerRefusedError(f"{self.address} doesn't answer with JSON. {OTHER_PRODUCT}") from None

    def _parse_event(self, data: str) -> Any:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ServerError(f"{self.address} sent unreadable data in the middle of an answer. Check its log.")
        if error := found.get("error"):
            message = error.get("message") if isinstance(error, dict) else error
            raise ServerError(f"{self.address} failed: {self.shown(str(message))}.")
        return found

    def check(self, response: httpx2.Response) -> None:
        """Raise the sentence for a status that is not 200."""
        status = response.status_code
        if status == 200:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise ServerError(f"{self.address} sends compressed text, which was not asked for. Check the proxy.")
            return
        if 300 <= status < 400:
            to = response.headers.get("location", "")
            with contextlib.suppress(ServerError, ValueError):
                to = Address.parse(to).url if "://" in to else to
            raise ServerRefusedError(
                f"{self.address} redirects to {self.shown(to) or 'another address'}, which is not followed. "
                "If you trust that address, give it in place of this one."
            )
        said = self._said(response)
        if status in {401, 403}:
            why = "refuses the API key" if self._secrets else "requires an API key"
            raise ServerRefusedError(
                f"{self.address} {why} ({status}). Put a valid key into {KEY_VARIABLE} in the terminal, or choose "
                "Add server… in the window and give it with this address."
            )
        if status in {429, 503}:
            raise ServerBusyError(
                f"{self.address} is too busy ({status}){said}. Try again later.", _seconds(response.headers)
            )
        if status == 404 and not said:
            raise ServerRefusedError(f"{self.address} answers {response.url} with 404. Check the address.")
        kind = ServerRefusedError if status < 500 else ServerError
        raise kind(f"{self.address} refused the request ({status}){said}.")

    def _said(self, response: httpx2.Response) -> str:
        """What a server says about a failure, to stand behind a status; empty if it says nothing readable."""
        with contextlib.suppress(Exception):
            found = json.loads(self.read_whole(response))
            error = found.get("error", found) if isinstance(found, dict) else {}
            message = error.get("message") if isinstance(error, dict) else error
            if isinstance(message, str) and message.strip():
                return f": {self.shown(message)}"
        return ""

    def shown(self, text: str) -> str:
        """A server's text to quote, on one line and without our secrets, which it may repeat."""
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return first_line(ValueError(text)) if text.strip() else ""

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Turn what goes wrong with a connection into a sentence."""
        try:
            yield
        except httpx2.SSEError as error:
            limit = f"an event of more than {MOST_BYTES // 1_000_000} MB"
            what = limit if "limit" in str(error) else "text that is not an event stream"
            raise ServerError(f"{self.address} sent {what}. Check that it is an inference server.") from None
        except httpx2.TimeoutException as error:
            if isinstance(error, httpx2.ConnectTimeout):
                raise ServerError(f"{self.address} doesn't answer. Check the address and the network.") from None
            raise ServerError(f"{self.address} doesn't answer in time. Check its log.") from None
        except httpx2.TransportError as error:
            if problem := _tls_problem(error):
                raise ServerRefusedError(f"{self.address} {problem}.") from None
            if isinstance(error, httpx2.ConnectError):
                raise ServerError(f"No server answers at {self.address}. Start it, or check the address.") from None
            raise ServerError(
                f"{self.address} closed the connection in the middle of an answer. Check its log."
            ) from None
        except (httpx2.InvalidURL, UnicodeError):
            raise ServerRefusedError(f"{self.address} is not a valid address. Check it.") from None


OTHER_PRODUCT = "Outrider works with vLLM, SGLang and llama-server."


@functools.cache  # Reading a system's certificates takes a tenth of a second, and a run opens two connections.
def _certificates(file: str | None) -> ssl.SSLContext:
    """The system's certificates, or those of a file that the person named in SSL_CERT_FILE."""
    if not file:
        return httpx2.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=file)
    except OSError:
        raise ServerRefusedError("The file in SSL_CERT_FILE holds no certificates that can be read.") from None


def _encoded(body: Mapping[str, Any]) -> bytes:
    """A body as JSON; lone surrogates, which UTF-8 can't hold, are replaced as for a model that runs here."""
    return json.dumps(dict(body), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def _tls_problem(error: BaseException | None) -> str:
    """What is wrong with a server's TLS; empty if something else is wrong."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = first_line(ValueError(error.verify_message or str(error)))
            # 18 to 20: nobody whom the system trusts has signed it.
            how = " (to trust it, name its file in SSL_CERT_FILE)" if error.verify_code in {18, 19, 20} else ""
            return f"has an invalid certificate: {reason}{how}"
        if isinstance(error, ssl.SSLError):
            reason = first_line(ValueError(error.reason or str(error)))
            return f"doesn't answer over TLS ({reason}); if it uses plain HTTP, write http:// in the address"
        error = error.__cause__ or error.__context__
    return ""


def _seconds(headers: Mapping[str, str]) -> float | None:
    """What Retry-After asks for; None if it is no number of seconds."""
    with contextlib.suppress(ValueError):
        seconds = float(headers.get("retry-after", ""))
        return seconds if 0 <= seconds < 1e6 else None
    return None
