"""Identifies the server at an address as vLLM, SGLang or llama-server, from its own answers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any
from urllib.parse import quote, urlencode

from core.engines.address import Address, key_for
from core.engines.client import OTHER_PRODUCT, Client
from core.engines.metrics import Snapshot, read_metrics
from core.errors import ServerError, ServerRefusedError
from core.runlog.reading import count_of, mapping_of, mappings_of, text_of
from core.text import PRODUCT_NAMES, count_text, did_you_mean


class Product(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMA_SERVER = "llama-server"

    @property
    def shown(self) -> str:
        return PRODUCT_NAMES[self]


_OWNERS = {"vllm": Product.VLLM, "sglang": Product.SGLANG, "llamacpp": Product.LLAMA_SERVER}
"""Who /v1/models says owns a model."""
_MISSING = (400, 401, 403, 404, 405, 500, 501, 503)
"""Answers of a server that lacks or hides a page."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """How a server drafts, as far as it reports it.

    Attributes:
        is_on: None if it doesn't report it.
        method: in the server's own words, such as EAGLE3 or draft-simple; vLLM reports none.
        num_draft_tokens: K, the most tokens that it drafts in a step.
        drafts_always: whether every step drafts, as with a draft model; with n-grams only some do.
    """

    is_on: bool | None = None
    method: str | None = None
    num_draft_tokens: int | None = None
    drafts_always: bool = False

    @property
    def text(self) -> str:
        """In words, for "test this address"."""
        if self.is_on is None:
            return "doesn't report whether it drafts"
        if not self.is_on:
            return "doesn't draft"
        method = "" if self.method is None else f" ({self.method})"
        most = self.num_draft_tokens
        length = "" if most is None else f" up to {count_text(most, 'token')} per step"
        return f"drafts{method}{length}"


_Description = tuple[str, int | None, Speculation]
"""A server's version, context length and speculation."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that was identified. It holds its key, which no text and no repr shows.

    Attributes:
        models: the names that a request may ask for, the first being its default.
        context_length: tokens of prompt and text together; None if it isn't reported. Of a router, as `speculation` and
            `metrics`, that of the default model.
        metrics: a first reading of /metrics; None if the server offers none.
        is_router: whether it is a llama-server that starts another one for each model.
    """

    address: Address
    product: Product
    version: str
    models: tuple[str, ...]
    context_length: int | None
    speculation: Speculation
    metrics: Snapshot | None = None
    key: str | None = field(default=None, repr=False)
    is_router: bool = False

    def client(self) -> Client:
        """A connection, for one thread."""
        return Client(self.address, self.key)

    def model(self, name: str) -> str:
        """The model of this name; the default one for an empty name.

        Raises:
            ServerRefusedError: the server doesn't have it.
        """
        if not name or name in self.models:
            return name or self.models[0]
        has = f"it has {', '.join(self.models[:5])}{' and more' if len(self.models) > 5 else ''}"
        raise ServerRefusedError(f"{self.address} has no model {name!r}; {has}.{did_you_mean(name, self.models)}")

    def counterpart(self, name: str) -> str:
        """What it calls a model of another server: the same, or its only model's name.

        Raises:
            ServerRefusedError: none of its several models has that name.
        """
        return self.models[0] if len(self.models) == 1 else self.model(name)

    def for_model(self, name: str) -> Server:
        """This server with that model as its default; what a router reports of another one isn't known of it.

        Raises:
            ServerRefusedError: the server doesn't have it.
        """
        if not self.is_router or (name := self.model(name)) == self.models[0]:
            return self
        models = (name, *(other for other in self.models if other != name))
        return replace(self, models=models, context_length=None, speculation=Speculation())

    def query(self, name: str = "") -> str:
        """What names a model in the path of a page; empty if the server needs no name.

        Raises:
            ServerRefusedError: the server doesn't have it.
        """
        return _query(self.model(name)) if self.is_router else ""

    @property
    def text(self) -> str:
        """What was found, in a line."""
        context = "" if self.context_length is None else f", context {self.context_length:,}"
        models = ", ".join(self.models)
        who = self.models[0] if self.is_router else "it"
        return (
            f"{self.product.shown} {self.version} at {self.address}: {models}{context}; {who} {self.speculation.text}."
        )


def identify(url: str, key: str | None = None, check_cancelled: Callable[[], None] | None = None) -> Server:
    """Find out what answers at an address.

    Args:
        url: as a person writes it, with or without /v1.
        key: the API key; if None, the one that was kept for this address.
        check_cancelled: called from this thread while another one asks; raises to end the requests.

    Raises:
        ServerError: nothing answers, the key is wrong, or it is another product: one sentence each.
    """
    address = Address.parse(url)
    key = key_for(address) if key is None else key or None
    with Client(address, key) as client:
        if check_cancelled is None:
            return _identified(client, key)
        found: Server = client.watched(lambda: _identified(client, key), check_cancelled)
        return found


def _identified(client: Client, key: str | None) -> Server:
    address = client.address
    listed = mapping_of(client.get("/v1/models", missing=(404, 405)))
    models = [model for model in mappings_of(listed.get("data")) if isinstance(model.get("id"), str)]
    if not models:
        raise ServerRefusedError(f"The server at {address} lists no models. {OTHER_PRODUCT} Check the address.")
    product = _OWNERS.get(str(models[0].get("owned_by"))) or _product(client)
    if product is None:
        raise ServerRefusedError(f"The server at {address} is of an unknown kind. {OTHER_PRODUCT}")
    is_router = product is Product.LLAMA_SERVER and _page(client, "/props").get("role") == "router"
    if is_router:
        models.sort(key=lambda model: {"loaded": 0, "sleeping": 1}.get(_status(model), 2))
    query = _query(models[0]["id"]) if is_router else ""
    # A router's model that sleeps would wake.
    is_awake = not is_router or _status(models[0]) == "loaded"
    metrics = None
    with contextlib.suppress(ServerError):  # They are an extra, such as behind a proxy that shows only /v1.
        metrics = read_metrics(client, query) if is_awake else None
    if product is Product.LLAMA_SERVER:
        found = _llama_server(client, models[0], metrics, query, is_awake)
    else:
        found = (_vllm if product is Product.VLLM else _sglang)(client, models[0], metrics)
    version, context_length, speculation = found
    names = tuple(model["id"] for model in models)
    return Server(address, product, version, names, context_length, speculation, metrics, key, is_router)


def _status(model: dict[str, Any]) -> str:
    return text_of(mapping_of(model.get("status")).get("value"))


def _query(model: str) -> str:
    # A look at a model must not load it.
    return f"?{urlencode({'model': model, 'autoload': 'false'}, quote_via=quote)}"


def _product(client: Client) -> Product | None:
    """The product of a server whose models say nothing, such as fine-tuned ones with an owner of their own."""
    found = _page(client, "/props")
    if "build_info" in found or "default_generation_settings" in found:
        return Product.LLAMA_SERVER
    if _server_info(client):
        return Product.SGLANG
    return Product.VLLM if "version" in _page(client, "/version") else None


def _vllm(client: Client, model: dict[str, Any], metrics: Snapshot | None) -> _Description:
    version = _page(client, "/version").get("version")
    if metrics is None:
        speculation = Speculation()
    else:
        is_on = metrics.drafts is not None
        speculation = Speculation(is_on, None, metrics.num_draft_tokens, is_on and metrics.drafts_always)
    return str(version or "unknown"), count_of(model.get("max_model_len")) or None, speculation


def _sglang(client: Client, model: dict[str, Any], metrics: Snapshot | None) -> _Description:
    info = _server_info(client)
    method = info.get("speculative_algorithm")
    # A tree of one candidate a level is a chain, whose first node is the last token of the text. Its steps aren't its
    # length where one step drafts a block, as with DFLASH.
    length, nodes = (count_of(info.get(f"speculative_num_{name}")) for name in ("steps", "draft_tokens"))
    if nodes and (not length or info.get("speculative_eagle_topk") in (None, 1)):
        length = nodes - 1
    is_on = bool(method) if "speculative_algorithm" in info else None
    speculation = Speculation(
        is_on, str(method) if method else None, (length or None) if method else None, bool(method)
    )
    context = count_of(info.get("context_length")) or count_of(model.get("max_model_len")) or None
    return str(info.get("version") or "unknown"), context, speculation


def _llama_server(
    client: Client, model: dict[str, Any], metrics: Snapshot | None, query: str, is_awake: bool
) -> _Description:
    props = _page(client, f"/props{query}") or _page(client, "/props")
    settings, meta = mapping_of(props.get("default_generation_settings")), mapping_of(model.get("meta"))
    context = count_of(settings.get("n_ctx")) or count_of(meta.get("n_ctx")) or None
    slots = mappings_of(_json(client, f"/slots{query}")) if is_awake else []
    is_on = slots[0].get("speculative") if slots else None
    if not isinstance(is_on, bool):
        is_on = True if metrics is not None and metrics.drafts else None
    method = None
    for slot in slots:
        types = mapping_of(slot.get("params")).get("speculative.types")
        kinds = [kind for kind in str(types or "").split(",") if kind not in {"", "none"}]
        method = ",".join(kinds) or method
    length = metrics.num_draft_tokens if metrics is not None else None
    return str(props.get("build_info") or "unknown"), context, Speculation(is_on, method, length)


def _server_info(client: Client) -> dict[str, Any]:
    """SGLang's description of itself; empty if this is another server."""
    for path in ("/server_info", "/get_server_info", "/get_model_info"):
        if "model_path" in (found := _page(client, path)):
            return found
    return {}


def _page(client: Client, path: str) -> dict[str, Any]:
    return mapping_of(_json(client, path))


def _json(client: Client, path: str) -> Any:
    """The JSON at a path; None if the server lacks it, for which a gateway may send a web page of its own."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(client.get_text(path, missing=_MISSING) or "")
    return None
