"""Distils a small draft from any Llama-architecture target, on text that the target writes itself.

The draft borrows the target's embedding and part of its output head, so only a few layers are trained and stored
(`core.models.shared_draft` loads the result). `pipeline` runs the stages: write texts, train the student, export it.
"""
