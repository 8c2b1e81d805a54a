"""Distils a small draft from any Llama-architecture target, on text that the target writes itself.

The draft reads with the target's embedding and speaks with some rows of its output head, so that only a few layers are
trained and stored (`core.models.shared_draft` loads the result). Stages: the target writes conversations
(`self_play`), its distributions on them are kept (`teacher`), the layers are trained on them (`student`, `train`).
"""
