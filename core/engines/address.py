"""A server's address, and the API key that was kept for it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from core.errors import ServerRefusedError

KEY_VARIABLE = "OUTRIDER_API_KEY"
_KEYRING_SERVICE = "outrider"
_kept: dict[str, str] = {}
"""Keys by address, for systems without a keyring."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is. `url` has no credentials, and no trailing /v1; those that the person wrote into it are kept
    apart and never shown."""

    url: str
    login: tuple[str, str] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.url

    @classmethod
    def parse(cls, text: str) -> Address:
        """The address in a text such as http://127.0.0.1:8000 or gpu-box:8000/v1.

        Raises:
            ServerRefusedError: it is none.
        """
        text = text.strip()
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port
            if parts.scheme not in {"http", "https"} or not host or " " in text or not text.isprintable():
                raise ValueError
        except ValueError:
            raise ServerRefusedError(
                "A server's address looks like http://127.0.0.1:8000; this is not one. Check it."
            ) from None
        name = f"[{host}]" if ":" in host else host
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        login = (unquote(parts.username or ""), unquote(parts.password or "")) if "@" in parts.netloc else None
        return cls(f"{parts.scheme}://{name}{'' if port is None else f':{port}'}{path}", login)


def key_for(address: Address) -> str | None:
    """The API key that was kept for an address, if there is one."""
    if key := _kept.get(address.url):
        return key
    # A machine may have no keyring, or a locked one; its libraries raise errors of many kinds.
    with contextlib.suppress(Exception):
        import keyring

        return keyring.get_password(_KEYRING_SERVICE, address.url) or None
    return None


def keep_key(address: Address, key: str) -> None:
    """Keep a key for an address in the system's keyring, or, without one, in memory; an empty key is forgotten."""
    _kept[address.url] = key
    with contextlib.suppress(Exception):
        import keyring

        if key:
            keyring.set_password(_KEYRING_SERVICE, address.url, key)
        elif keyring.get_password(_KEYRING_SERVICE, address.url) is not None:
            keyring.delete_password(_KEYRING_SERVICE, address.url)
