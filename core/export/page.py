"""The page that every report stands on: head, style sheet, sections and tables."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

_REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
"""Characters that turn the direction of what follows them: they could make a report read as something else."""


def _visible_table() -> dict[int, str]:
    table = {code: chr(0x2400 + code) for code in range(0x20)}
    table[0x7F] = "␡"
    table |= dict.fromkeys((*range(0x80, 0xA0), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\ufffd")
    table |= {code: f"⟨U+{code:04X}⟩" for code in _REORDERING}
    for kept in "\n\t":
        del table[ord(kept)]
    return table


_VISIBLE = _visible_table()
_ON_ONE_LINE = {**_VISIBLE, ord("\n"): "↵", ord("\t"): "⇥"}


def escaped(text: str) -> str:
    """For the inside of an element; line ends and tabs stay."""
    return html.escape(text.translate(_VISIBLE))


def attribute(text: str) -> str:
    """For an attribute's value in double quotes, and for whatever else has to stay on a line."""
    return html.escape(text.translate(_ON_ONE_LINE))


LIGHT = {
    "window": "#f5f6f8",
    "surface": "#ffffff",
    "border": "#e2e5ea",
    "text": "#1a1c21",
    "muted": "#565c69",
    "accent": "#3d4fd0",
    "danger": "#a3210f",
    "danger_surface": "#fdf0ee",
    "accepted": "#07629e",
    "correction": "#a84300",
    "correction_tint": "#fdf0e4",
    "bonus": "#006b52",
    "bonus_tint": "#e5f5ef",
    "track": "#e9ecf1",
    "draft_bar": "#3d8ccb",
    "target_bar": "#2a9c78",
    "sample_bar": "#d9742a",
    "run_1": "#0b6fb3",
    "run_2": "#c9570c",
    "run_3": "#00805f",
    "run_4": "#a6408a",
    "run_5": "#8a6a00",
    "run_6": "#4a4f5a",
}

DARK = {
    "window": "#121316",
    "surface": "#1a1c20",
    "border": "#2a2d34",
    "text": "#e7e9ed",
    "muted": "#a6acb8",
    "accent": "#93a1ff",
    "danger": "#ff9d92",
    "danger_surface": "#2e1c1b",
    "accepted": "#62b8f2",
    "correction": "#f3a35c",
    "correction_tint": "#35281c",
    "bonus": "#4bcfa5",
    "bonus_tint": "#1a3029",
    "track": "#282b31",
    "draft_bar": "#4f9fdb",
    "target_bar": "#37ab86",
    "sample_bar": "#e0904a",
    "run_1": "#5cb3ef",
    "run_2": "#ef8d4a",
    "run_3": "#3cc79c",
    "run_4": "#e08cc3",
    "run_5": "#d9c04a",
    "run_6": "#c3c8d1",
}


UNKNOWN = "–"
"""What stands for a figure that is not known."""

CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a browser may do with the page: show it. Whatever a text may hold, nothing is fetched and nothing is run."""

_RULES = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: var(--window); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", Inter, Cantarell, "Noto Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
p { margin: .4rem 0; max-width: 48rem; }
.muted, .note, figcaption, footer { color: var(--muted); }
.note, figcaption, footer { font-size: .87rem; }
.card, .text, figure { background: var(--surface); border: 1px solid var(--border); border-radius: 8px; }
.warning { background: var(--danger_surface); color: var(--danger); border-radius: 8px; padding: .5rem .9rem; }
.verdict { font-size: 1.05rem; font-weight: 600; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(13.5rem, 1fr)); gap: .6rem; margin: 0; }
.card { padding: .6rem .8rem; overflow-wrap: anywhere; }
.card dt { color: var(--muted); font-size: .87rem; }
.card .value { font-size: 1.45rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.card dd { margin: 0; font-size: .82rem; color: var(--muted); line-height: 1.4; }
.card code { font-size: .72rem; }
.card dd.value { color: var(--text); }
code, .text, td.value { font-family: ui-monospace, "JetBrains Mono", "SF Mono", Menlo, Consolas, "DejaVu Sans Mono",
  monospace; font-size: .86rem; }
.text { padding: .9rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.75; margin: 0;
  unicode-bidi: plaintext; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.legend { margin: .4rem 0 .6rem; }
p.legend > span { display: block; }
.p { color: var(--muted); }
.a, .r, .b { text-decoration-thickness: 1.5px; text-underline-offset: 3px; border-radius: 2px; }
.a { color: var(--accepted); text-decoration: underline solid; }
.r { color: var(--correction); background: var(--correction_tint); text-decoration: underline wavy; }
.b { color: var(--bonus); background: var(--bonus_tint); text-decoration: underline dotted; }
.a:hover, .r:hover, .b:hover { outline: 1px solid currentColor; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; background: var(--surface); font-size: .9rem; }
th, td { text-align: left; padding: .3rem .7rem; border: 1px solid var(--border); vertical-align: top;
  overflow-wrap: anywhere; }
th { font-weight: 600; overflow-wrap: break-word; }
tbody th { font-weight: 400; color: var(--muted); width: 15rem; }
.wide tbody th { width: auto; min-width: 8rem; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide th, .wide td { padding: .3rem .5rem; }
th.number { text-align: right; }
.wide td.number { white-space: normal; overflow-wrap: normal; }
caption { text-align: left; padding: .5rem 0 .3rem; font-weight: 600; }
.heat { width: auto; margin-bottom: .8rem; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.heat tbody th { width: auto; white-space: nowrap; }
.best { outline: 2px solid var(--text); outline-offset: -2px; }
figure { margin: 0 0 1rem; padding: .8rem 1rem; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; }
figcaption b { color: var(--text); display: block; font-size: .95rem; }
.key { display: inline-block; margin-right: 1.1rem; white-space: nowrap; }
.key svg { display: inline-block; width: 22px; height: 10px; vertical-align: middle; margin-right: .35rem; }
svg text { fill: var(--muted); font: 12px system-ui, "Segoe UI", Inter, "Noto Sans", sans-serif;
  font-variant-numeric: tabular-nums; }
svg text.cell { fill: var(--text); }
svg text.strong { font-weight: 700; }
.grid { stroke: var(--border); }
.axis { stroke: var(--muted); }
details { margin: .6rem 0; }
summary { cursor: pointer; }
footer { margin-top: 2.5rem; border-top: 1px solid var(--border); padding-top: .7rem; }
@media print {
  body { max-width: none; padding: 0; font-size: 11pt; }
  .card, figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""


def _tokens(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def style_sheet() -> str:
    """Both themes; paper is always light."""
    return (
        f":root {{ color-scheme: light dark; {_tokens(LIGHT)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_tokens(DARK)} }} }}\n{_RULES}"
    )


def page(title: str, body: Iterable[str], *, version: str) -> str:
    """A whole HTML file."""
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{attribute(CONTENT_POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{attribute(title)}</title>",
            f"<style>{style_sheet()}</style>",
            "</head>",
            "<body>",
            *body,
            f"<footer>Written by Outrider {escaped(version)}. This file is whole: no network, no script.</footer>",
            "</body>",
            "</html>",
            "",
        )
    )


def section(title: str, *parts: str) -> str:
    """A heading and what stands under it; nothing at all where that is empty."""
    inside = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escaped(title)}</h2>\n{inside}\n</section>" if inside else ""


def settings_table(values: Mapping[str, str], caption: str) -> str:
    """Names and values, a row each."""
    rows = "\n".join(
        f'<tr><th scope="row">{escaped(name)}</th><td class="value"><bdi>{escaped(value)}</bdi></td></tr>'
        for name, value in values.items()
    )
    return f'<table aria-label="{attribute(caption)}">\n<tbody>\n{rows}\n</tbody>\n</table>' if rows else ""


def figures_table(
    names: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], caption: str, *, of_words: bool = False
) -> str:
    """A row a figure, or a setting, and a column for each thing that has it; what are words may break."""
    kind = "value" if of_words else "number"
    head = "".join(f'<th scope="col" class="{kind}"><bdi>{escaped(name)}</bdi></th>' for name in names)
    body = "\n".join(
        f'<tr><th scope="row">{escaped(name)}</th>'
        + "".join(f'<td class="{kind}"><bdi>{escaped(cell)}</bdi></td>' for cell in cells)
        + "</tr>"
        for name, cells in rows
    )
    return (
        f'<div class="wide"><table aria-label="{attribute(caption)}">\n<thead><tr><td></td>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def warnings(sentences: Iterable[str]) -> str:
    """What is wrong with the file that this was made of."""
    return "\n".join(f'<p class="warning" role="note">{escaped(sentence)}</p>' for sentence in sentences)
