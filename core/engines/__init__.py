"""Servers as engines: vLLM, SGLang and llama-server run a request, with the events of a run on this machine.

    from core.engines.server import identify
    from core.engines.session import ServerSession

    server = identify("http://127.0.0.1:8000")             # -> Server: product, version, models, context_length,
    print(server.text)                                     #    speculation (is_on, method, num_draft_tokens), metrics
    request = RunRequest(target=server.model(""), draft=None, prompt="Why is the sky blue?", num_draft_tokens=None,
                         engine=server.address.url)
    for event in ServerSession(server).run(request, controls):
        ...                                                # RunStarted, PrefillDone, Step, StepsCounted, Finished

`target` is a model's name on the server; `server.model("")` is its default one, and a router's `speculation` only that
one's (`server.for_model(name)` knows nothing of it). A `Step` holds `source`: SERVER
(reported), CHUNKS (inferred from the stream) or TEXT (nothing known); NaN and `UNKNOWN_ID` stand for what isn't
reported, and the log lacks it. A `StepsCounted` holds counts that came only at the end; its `applied(steps)` gives the
steps with these. `summary.source` says the same of the whole run, and `advice(config, summary)` names the flag that
would make the server report more.

    with server.client() as client:                        # a text without its steps, for sweeps and checks
        for chunk in stream_chunks(client, server, request, controls.check_cancelled, top_logprobs=20):
            chunk.arrived, chunk.tokens[0].id, .text, .logprob, .top   # also .counts, .reported, .finish

    with server.client() as client:
        page = server.query("")                            # names a model where a server's pages need one; else empty
        before = read_metrics(client, page)                # -> Snapshot, or None if the server has no /metrics
        ...
        grown = difference(before, read_metrics(client, page))   # -> Snapshot of what happened, or None after a restart

Several threads may use one `Server`, each with a `ServerSession` or client of its own. Every fault is a `ServerError`
of one sentence: `ServerBusyError` (429, 503: has `retry_after`; `retrying` waits for it twice at most) and
`ServerRefusedError` (address, key, model or setting don't fit). Keys are kept by address
(`key_for`, `keep_key`), and no text, log or repr holds one.
"""
