"""Python's garbage collector, kept from walking over all that the libraries hold while a run goes."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_users: set[object] = set()


@contextlib.contextmanager
def only_new_objects() -> Iterator[None]:
    """Within it, the collector looks at objects made since; what was there before waits until the end.

    A full collection walks over everything that torch and transformers hold, a quarter of a second in which no thread
    runs any Python: in a window's process that strikes in most runs. May be nested, and used in several threads.
    """
    user = object()
    with _lock:
        _users.add(user)
        gc.freeze()
    try:
        yield
    finally:
        with _lock:
            _users.discard(user)
            if not _users:
                gc.unfreeze()
