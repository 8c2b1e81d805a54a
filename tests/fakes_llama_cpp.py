"""A build of llama.cpp in a folder: a server and a conversion script that note what they are asked for."""

import json
import sys

SERVER = """#!{python}
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

if "--version" in sys.argv:
    sys.exit(print("version: 1.2 (fake)", file=sys.stderr))
here = Path(__file__).parent
if (here / "broken").exists():
    sys.exit("main: no such model")
options = dict(zip(sys.argv[1:], sys.argv[2:]))


def note(what):
    with (here / "noted.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\\n")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(200, {{"status": "ok"}})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        note(asked)
        if (here / "refuses").exists():
            return self.reply(400, {{"error": {{"message": "too long"}}}})
        tokens = [(sum(asked["prompt"]) + index) % 200 for index in range(asked["n_predict"])]
        drafted = {{"draft_n_accepted": 4}} if "--spec-draft-model" in options else {{}}
        self.reply(200, {{"tokens": tokens, "timings": drafted}})

    def reply(self, status, answer):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_details):
        pass


server = HTTPServer((options["--host"], int(options["--port"])), Handler)
note({{"pid": os.getpid(), "arguments": sys.argv[1:]}})
server.serve_forever()
"""

SCRIPT = """
import json, sys
from pathlib import Path

import sentencepiece

source, out = Path(sys.argv[1]), Path(sys.argv[sys.argv.index("--outfile") + 1])
out.write_bytes(b"GGUF")
if (Path(__file__).parent / "unknown").exists():
    raise NotImplementedError("BPE pre-tokenizer was not recognized.")
with (Path(__file__).parent / "converted.jsonl").open("a") as file:
    kind = sys.argv[sys.argv.index("--outtype") + 1]
    file.write(json.dumps({"kind": kind, "files": sorted(part.name for part in source.iterdir())}) + "\\n")
"""


def make_build(folder, *, script=True):
    """Write the build; returns its folder."""
    (folder / "bin").mkdir(parents=True)
    server = folder / "bin" / "llama-server"
    server.write_text(SERVER.format(python=sys.executable))
    server.chmod(0o755)
    if script:
        (folder / "convert_hf_to_gguf.py").write_text(SCRIPT)
    return folder


def _lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def conversions(build):
    """The precision of each conversion, and the files that it read."""
    return _lines(build / "converted.jsonl")


def starts(build):
    """Process id and arguments of each server that was started."""
    return [line for line in _lines(build / "bin" / "noted.jsonl") if "pid" in line]


def requests(build):
    """What the servers were asked for."""
    return [line for line in _lines(build / "bin" / "noted.jsonl") if "prompt" in line]
