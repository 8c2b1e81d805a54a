"""How each product is asked for a text, and what its stream means: one function for each way of asking.

Each yields `Chunk`s and raises `ServerError`; closing it ends the request on the server. All settings of the sampler
are sent: a server's own defaults, such as those in a model's generation_config.json, would change the distribution.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, replace
from typing import Any

from core.engines.client import Client
from core.engines.server import Product, Server
from core.engines.steps import MAX_COUNT, Chunk, Counts, Reported, Token, split_text, unknown_tokens
from core.errors import ServerError, ServerRefusedError
from core.runlog.reading import count_of, ids_of, mapping_of, mappings_of, text_of
from core.settings import RunRequest
from core.types import UNKNOWN_ID, FinishReason

Check = Callable[[], None]
_MOST_TOKENS = 1_000
"""More than any piece of a stream holds; a server may claim any number."""


def stream_chunks(
    client: Client, server: Server, request: RunRequest, check_cancelled: Check, top_logprobs: int = 0
) -> Generator[Chunk, None, None]:
    """Ask a server for a text, in the way that reports most about its steps.

    Args:
        top_logprobs: how many of the likeliest tokens to ask for at each position; llama-server's are not used.
    """
    if server.product is Product.LLAMA_SERVER:
        yield from _llama_server(client, server, request, check_cancelled)
    elif server.product is Product.SGLANG and request.chat is False:
        yield from _sglang(client, request, check_cancelled, top_logprobs)
    else:
        yield from _openai(client, server, request, check_cancelled, top_logprobs)


def _messages(request: RunRequest) -> list[dict[str, str]]:
    system = [{"role": "system", "content": request.system}] if request.system else []
    return [*system, {"role": "user", "content": request.prompt}]


def _sampler(request: RunRequest) -> dict[str, Any]:
    """The sampler's settings as vLLM and SGLang name them: -1 stands for no top-k."""
    sampling = asdict(request.sampling) | {"top_k": request.sampling.top_k or -1}
    return {**sampling, "repetition_penalty": 1.0, "stop": list(request.stop)}


# --- vLLM, and SGLang's chat --------------------------------------------------------------------------------------


def _openai(
    client: Client, server: Server, request: RunRequest, check_cancelled: Check, top_logprobs: int
) -> Iterator[Chunk]:
    """OpenAI's protocol, with vLLM's additions: the tokens' ids, and the counts of each step at the end."""
    body: dict[str, Any] = {
        "model": server.model(request.target),
        "max_tokens": request.max_new_tokens,
        **_sampler(request),
        "seed": request.seed,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
    }
    if request.stop and server.product is Product.VLLM:
        # Otherwise vLLM holds back text that may begin a stop text, but not the ids and logprobs of its tokens.
        body["include_stop_str_in_output"] = True
    if server.product is Product.SGLANG:
        # SGLang sends no logprobs with reasoning, from which the tokens of a piece are counted.
        body["separate_reasoning"] = False
    if request.chat is not False:
        chat = {**body, "messages": _messages(request), "logprobs": True, "top_logprobs": top_logprobs}
        try:
            yield from _openai_chunks(client.stream("/v1/chat/completions", chat, check_cancelled))
            return
        except ServerRefusedError as error:
            # As on this machine, a model without a chat template gets the bare prompt.
            if request.chat or request.system or "chat template" not in str(error):
                raise
    plain = {**body, "prompt": request.prompt, "logprobs": top_logprobs}
    yield from _openai_chunks(client.stream("/v1/completions", plain, check_cancelled))


def _openai_chunks(events: Iterator[tuple[float, Any]]) -> Iterator[Chunk]:
    # Nothing is lost if a field is of an unexpected kind: it counts as not reported.
    prompt_ids: tuple[int, ...] | None = None
    shown = ""
    for at, event in events:
        choices = event.get("choices")
        choice = mapping_of(choices[0]) if isinstance(choices, list) and choices else {}
        ids = event.get("prompt_token_ids") or choice.get("prompt_token_ids")
        prompt_ids = ids_of(ids) or prompt_ids
        usage = mapping_of(event.get("usage"))
        finish, tokens = choice.get("finish_reason"), _openai_tokens(choice)
        # vLLM names it one way, SGLang another.
        stop, surplus = choice.get("stop_reason", choice.get("matched_stop")), 0
        if isinstance(finish, str) and isinstance(stop, str):
            tokens, surplus = _cut(tokens, shown, stop)
        shown += "".join(token.text for token in tokens)
        yield Chunk(
            at,
            tokens,
            is_step=not tokens or tokens[0].id != UNKNOWN_ID or math.isfinite(tokens[0].logprob),
            finish=_finish(finish, stop) if isinstance(finish, str) else None,
            reported=_vllm_reported(mapping_of(mapping_of(event.get("metrics")).get("speculative_decoding"))),
            prompt_ids=prompt_ids,
            num_prompt_tokens=len(prompt_ids) if prompt_ids else count_of(usage.get("prompt_tokens")),
            surplus=surplus,
        )


def _cut(tokens: tuple[Token, ...], before: str, stop: str) -> tuple[tuple[Token, ...], int]:
    """The last tokens without the stop text, and how many of its characters are in the text before them."""
    text = "".join(token.text for token in tokens)
    # vLLM sends the stop text. SGLang leaves it out, but may have sent its beginning; only the names show the rest.
    whole = before + (text or "".join(token.name for token in tokens))
    place = whole.find(stop, max(0, len(before) - len(stop)))
    surplus = max(0, len(before + text) - place) if place >= 0 else 0
    kept: list[Token] = []
    for token in reversed(tokens):
        end = max(0, len(token.text) - surplus)
        surplus -= len(token.text) - end
        kept.append(replace(token, text=token.text[:end]))
    return tuple(reversed(kept)), surplus


def _openai_tokens(choice: dict[str, Any]) -> tuple[Token, ...]:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        texts = (delta.get("reasoning") or delta.get("reasoning_content"), delta.get("content"))
        text = "".join(part for part in texts if isinstance(part, str))
    else:
        text = text_of(choice.get("text"))
    ids, logprobs = ids_of(choice.get("token_ids")), mapping_of(choice.get("logprobs"))
    found = _logprobs(logprobs)
    count = len(ids) or len(found)
    if not count:
        return unknown_tokens(text) if text else ()
    found = found if len(found) == count else [("", math.nan, ())] * count
    parts = split_text(text, [part for part, _, _ in found])
    ids = ids or (UNKNOWN_ID,) * count
    return tuple(
        Token(token, part, logprob, top, name)
        for token, part, (name, logprob, top) in zip(ids, parts, found, strict=True)
    )


def _logprobs(logprobs: dict[str, Any]) -> list[tuple[str, float, tuple[tuple[str, float], ...]]]:
    """Text, logprob and likeliest tokens of each token, in the form of chat or of completions."""
    content = logprobs.get("content")
    if isinstance(content, list):
        return [
            (*_scored(item), tuple(map(_scored, mappings_of(item.get("top_logprobs")))))
            for item in mappings_of(content)
        ]
    texts, values, tops = (logprobs.get(name) or () for name in ("tokens", "token_logprobs", "top_logprobs"))
    if not isinstance(texts, list) or not isinstance(values, list) or len(texts) != len(values):
        return []
    tops = tops if isinstance(tops, list) and len(tops) == len(texts) else [{}] * len(texts)
    return [
        (str(text), _float(value), tuple((str(name), _float(logprob)) for name, logprob in mapping_of(top).items()))
        for text, value, top in zip(texts, values, tops, strict=True)
    ]


def _scored(item: dict[str, Any]) -> tuple[str, float]:
    """The text and logprob of a token in a chat's answer."""
    return str(item.get("token", "")), _float(item.get("logprob"))


def _vllm_reported(found: dict[str, Any]) -> Reported | None:
    if not found:
        return None
    names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    steps, draft_tokens, accepted_tokens = (count_of(found.get(name)) for name in names)
    drafted, accepted = ids_of(found.get("per_step_drafted")), ids_of(found.get("per_step_accepted"))
    per_step = tuple(zip(drafted, accepted, strict=True)) if len(drafted) == len(accepted) else ()
    if any(max(counts) > MAX_COUNT for counts in per_step):
        per_step = ()
    return Reported(steps, draft_tokens, accepted_tokens, per_step)


def _finish(reason: str, stop_reason: Any, message: str = "") -> FinishReason:
    """
    Raises:
        ServerError: the server gave up.
    """
    if reason in {"abort", "error"}:
        said = f" ({message})" if message else ""
        raise ServerError(f"The server ended the request before the text was complete{said}. Try again.")
    if reason == "length":
        return FinishReason.LENGTH
    # A stop text is named; the end of the text is not, or by its token's id.
    return FinishReason.STOP if isinstance(stop_reason, str) else FinishReason.EOS


# --- SGLang -------------------------------------------------------------------------------------------------------

_ACCEPTED = ("spec_accept_token_num", "spec_num_correct_drafts", "spec_accepted_drafts")
_DRAFTED = ("spec_draft_token_num", "spec_num_proposed_drafts", "spec_proposed_drafts")
"""Names of the same counts in older and newer versions."""


def _sglang(client: Client, request: RunRequest, check_cancelled: Check, top_logprobs: int) -> Iterator[Chunk]:
    """SGLang's own /generate, whose texts, ids and counts are those of the whole text so far."""
    body = {
        "text": request.prompt,
        "sampling_params": {"max_new_tokens": request.max_new_tokens, **_sampler(request)},
        "stream": True,
        "return_logprob": True,
        "return_text_in_logprobs": True,
        "top_logprobs_num": top_logprobs,
    }
    text, count, seen, is_new = "", 0, (0, 0, 0), False
    for at, event in client.stream("/generate", body, check_cancelled):
        meta = mapping_of(event.get("meta_info"))
        shown = text_of(event.get("text"))
        total = count_of(meta.get("completion_tokens")) or count
        added, count = min(max(0, total - count), _MOST_TOKENS), max(total, count)
        rows = _sglang_rows(meta, added)
        # A server may be set to send only what is new, which may begin as the text so far does; the ids don't show it,
        # as some versions send only the new ones with the whole text. A row's text may lack the space before it.
        if text and not is_new:
            added_text, spaces = "".join(part for _, _, part in rows), " " if text.strip(" ") else ""
            is_new = not shown.startswith(text) or shown.lstrip(spaces) == added_text.lstrip(spaces)
        new, text = (shown, text + shown) if is_new else (shown[len(text) :], shown)
        tokens = _sglang_tokens(event, meta, rows, new, added)
        reported = _sglang_reported(meta)
        sums = (reported.drafts or 0, reported.draft_tokens or 0, reported.accepted_tokens or 0)
        counts, seen = _sglang_counts(seen, sums, len(tokens)), sums
        finish, surplus = mapping_of(meta.get("finish_reason")), 0
        if isinstance(stop := finish.get("matched"), str):
            tokens, surplus = _cut(tokens, text.removesuffix(new), stop)
        yield Chunk(
            at,
            tokens,
            counts=counts,
            finish=_finish(str(finish["type"]), stop, client.shown(str(finish.get("message") or "")))
            if "type" in finish
            else None,
            reported=reported if "type" in finish and reported != Reported() else None,
            num_prompt_tokens=count_of(meta.get("prompt_tokens")),
            surplus=surplus,
        )


def _sglang_counts(before: tuple[int, int, int], now: tuple[int, int, int], emitted: int) -> Counts | None:
    """The counts of one step, if each chunk reports the sums; a chunk that ends a silent stream holds all of them."""
    drafts, drafted, accepted = (new - old for new, old in zip(now, before, strict=True))
    return (drafted, accepted) if drafts == 1 and emitted - 1 == accepted <= drafted else None


def _sglang_rows(meta: dict[str, Any], count: int) -> list[tuple[Any, Any, str]]:
    """Logprob, id and text of the last tokens, as far as they are reported."""
    rows = meta.get("output_token_logprobs")
    rows = rows[-count:] if count and isinstance(rows, list) else []
    found = [row for row in rows if isinstance(row, list) and len(row) >= 2]
    return [(row[0], row[1], text_of(row[2]) if len(row) > 2 else "") for row in found]


def _sglang_tokens(
    event: dict[str, Any], meta: dict[str, Any], rows: list[tuple[Any, Any, str]], text: str, count: int
) -> tuple[Token, ...]:
    if not count:
        return unknown_tokens(text) if text else ()
    ids = ids_of(event.get("output_ids"))[-count:]
    if len(rows) != count:
        rows = [(math.nan, token, "") for token in (ids if len(ids) == count else (UNKNOWN_ID,) * count)]
    tops = meta.get("output_top_logprobs")
    tops = tops[-count:] if isinstance(tops, list) and len(tops) >= count else [()] * count
    parts = split_text(text, [part for _, _, part in rows])
    return tuple(
        Token(
            UNKNOWN_ID if (token := count_of(row[1])) is None else token,
            part,
            _float(row[0]),
            tuple((str(top[2]), _float(top[0])) for top in likeliest or () if isinstance(top, list) and len(top) > 2),
            row[2],
        )
        for row, part, likeliest in zip(rows, parts, tops, strict=True)
    )


def _sglang_reported(meta: dict[str, Any]) -> Reported:
    drafted, accepted = (
        next((count for name in names if (count := count_of(meta.get(name))) is not None), None)
        for names in (_DRAFTED, _ACCEPTED)
    )
    return Reported(count_of(meta.get("spec_verify_ct")), drafted, accepted)


# --- llama-server -------------------------------------------------------------------------------------------------

_STAND_IN = "{%- for message in messages -%}\n  {{- '<|im_start|>' + message.role"
"""How the template begins that llama-server has for models without one."""

_LLAMA_ENDS = {"limit": FinishReason.LENGTH, "word": FinishReason.STOP, "eos": FinishReason.EOS}


def _llama_server(client: Client, server: Server, request: RunRequest, check_cancelled: Check) -> Iterator[Chunk]:
    """/completion, which sends a chunk a token, with the sums of drafted and accepted tokens so far.

    Its logprobs are wrong under speculation (llama.cpp issue 27972) and are not asked for.
    """
    prompt, model = request.prompt, server.model(request.target)
    is_chat = request.chat is not False
    if request.chat is None and not request.system:
        query = server.query(request.target)
        is_chat = client.watched(lambda: _has_template(client, query), check_cancelled)
    if is_chat:
        asked = {"model": model, "messages": _messages(request)}
        answer = client.watched(lambda: client.post("/apply-template", asked), check_cancelled)
        prompt = mapping_of(answer).get("prompt", prompt)
    body = {
        "model": model,
        "prompt": prompt,
        "n_predict": request.max_new_tokens,
        # In Outrider's order; the server's own puts the temperature last.
        "samplers": ["temperature", "top_k", "top_p", "min_p"],
        **asdict(request.sampling),
        "seed": request.seed % (2**32 - 1),  # The largest number stands for a random seed.
        "stop": list(request.stop),
        "stream": True,
        "return_tokens": True,
        "timings_per_token": True,
    }
    seen, count, left = (0, 0), 0, 0
    counts: Counts | None = (0, 0)
    tokens: list[Token] = []
    at = arrived = 0.0
    is_silent = False
    num_prompt: int | None = None

    def step() -> Chunk:
        found = Chunk(arrived, tuple(tokens), counts, counts is not None, num_prompt_tokens=num_prompt)
        tokens.clear()
        return found

    for at, event in client.stream("/completion", body, check_cancelled):
        timings, num_prompt = mapping_of(event.get("timings")), count_of(event.get("tokens_evaluated"))
        total, text = count_of(timings.get("predicted_n")), text_of(event.get("content"))
        is_end = event.get("stop") is True
        if total is None and not is_end:  # An old server, which says nothing about its steps.
            is_silent = True
            yield Chunk(at, unknown_tokens(text), is_step=False, num_prompt_tokens=num_prompt)
            continue
        sums = (count_of(timings.get("draft_n")) or 0, count_of(timings.get("draft_n_accepted")) or 0)
        ids = () if is_end else ids_of(event.get("tokens"))[:1] or (UNKNOWN_ID,)
        # A token that ends within a character has no chunk of its own; elsewhere a count may be ahead by a whole step.
        may_hide = not is_silent and (is_end or not text.isascii())
        num_unseen = min((total or 0) - count - len(ids), _MOST_TOKENS) if may_hide else 0
        ids = (UNKNOWN_ID,) * num_unseen + ids
        count += len(ids)
        for place, token in enumerate(ids):
            if not left or (counts is None and sums != seen):
                if tokens:
                    yield step()
                counts = (max(0, sums[0] - seen[0]), max(0, sums[1] - seen[1]))
                left, seen = counts[1] + 1, sums
                if counts[0] and place < len(ids) - 1:
                    # Several steps may have begun since, and the last may go on for as many tokens as were accepted.
                    left, counts = len(ids) - place + counts[1], None
            tokens.append(Token(token, text if place == len(ids) - 1 else ""))
            arrived, left = at, left - 1
            if not left:
                yield step()
        if is_end:
            if tokens:
                yield step()
            drafted, accepted = (count_of(timings.get(name)) for name in ("draft_n", "draft_n_accepted"))
            if drafted is None and server.speculation.is_on and total is not None and not is_silent:
                drafted, accepted = 0, 0  # It leaves out the counts of a text without a draft.
            reported = None if drafted is None else Reported(None, drafted, accepted)
            tail = unknown_tokens(text) if text and not ids else ()
            finish = _LLAMA_ENDS.get(str(event.get("stop_type")))
            yield Chunk(at, tail, (0, 0), True, finish, reported, None, num_prompt)
            return
    if tokens:
        yield step()


def _has_template(client: Client, query: str) -> bool:
    """Whether the model has a chat template, in place of which llama-server has ChatML for those without."""
    with contextlib.suppress(ServerRefusedError):  # An old server has no such page, or a router's model sleeps.
        props = mapping_of(client.get(f"/props{query}"))
        return not text_of(props.get("chat_template")).startswith(_STAND_IN)
    return True


def _float(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:  # An integer too large for a float.
        return math.nan
