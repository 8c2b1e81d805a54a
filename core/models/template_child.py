"""The child process that renders one chat template: `python -m core.models.template_child FOLDER`.

A template is a stranger's program: it may loop for ever, or build a text that fills the memory. The child reads
FOLDER/request.json, the arguments of transformers' own renderer, and writes FOLDER/rendered.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from core.files import read_json
from core.models.child import ChildExit, end_with_parent, exit_code, limit

MEMORY_BYTES = 512 << 20
SECONDS = 5
LONGEST_BYTES = 32 << 20
"""Longest rendered prompt."""


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    threading.Thread(target=end_with_parent, daemon=True).start()
    from transformers.utils.chat_template_utils import render_jinja_template

    request = read_json(folder / "request.json", 2 * LONGEST_BYTES)
    (folder / "request.json").unlink()  # The parent's clock runs from here on.
    limit(memory_bytes=MEMORY_BYTES, processor_s=SECONDS)
    try:
        rendered, _ = render_jinja_template(**request)
        # Tokenizers take no lone surrogates.
        data = str(rendered[0]).encode("utf-8", "replace")
    except Exception as error:
        return exit_code(error)
    if len(data) > LONGEST_BYTES:
        return ChildExit.MEMORY
    (folder / "rendered").write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
