"""Self-contained HTML pages: elements with escaped text, tables, pictures as data URIs, one style."""

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""The policy of a page for browsers: no scripts, and nothing from elsewhere. Escaping comes first."""

STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1f2733; --muted: #667080; --line: #e3e6eb;
  --card: #f6f7f9; --train: #3b6fb6; --eval: #cf5427; --c2: #3f8f5b; --c3: #8a5fb0; --c4: #a67a1f;
  --c5: #1f8f8f; --c6: #c2517a; --c7: #5b5f66; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14181e; --text: #dfe4ea; --muted: #98a2b0; --line: #2e3641;
    --card: #1c222a; --train: #7fabe8; --eval: #f28a5f; --c2: #6fc38d; --c3: #b792dc; --c4: #d9ae55;
    --c5: #56c4c4; --c6: #e887aa; --c7: #a9b0ba; }
  .plot img { filter: invert(1) hue-rotate(180deg); mix-blend-mode: lighten; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1100px; padding: 1.5rem 1rem 4rem;
  background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.7rem; overflow-wrap: anywhere; }
h2 { margin: 2.5rem 0 .8rem; font-size: 1.2rem; border-bottom: 1px solid var(--line); padding-bottom: .3rem; }
h3 { margin: 0 0 .4rem; font-size: .95rem; }
p { margin: .4rem 0; }
a { color: var(--train); }
.muted, figcaption, th { color: var(--muted); }
.grid { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); }
.tiles { display: grid; gap: .6rem; margin-top: 1.2rem;
  grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); }
.tile, .card { background: var(--card); border-radius: 8px; padding: .7rem .9rem; min-width: 0; }
.tile b { display: block; font-size: 1.25rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--muted); font-size: .82rem; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  text-align: left; vertical-align: top; }
th { font-weight: 500; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code, pre { font: .85rem/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { margin: 0; white-space: pre-wrap; unicode-bidi: plaintext; max-height: 30rem; overflow-y: auto; }
td:first-child { white-space: nowrap; }
td:last-child:not(.number) { min-width: 12rem; }
td code { overflow-wrap: break-word; }
figure { margin: 0; min-width: 0; }
.plot img { display: block; max-width: 100%; height: auto; border-radius: 6px; }
.image img { display: block; max-width: 100%; min-width: 8rem; image-rendering: pixelated; }
details { margin: .5rem 0; }
details > pre, details > .scroll { margin-top: .6rem; }
summary { cursor: pointer; }
svg { display: block; width: 100%; max-width: 640px; height: auto; }
svg text { font: 13px system-ui, sans-serif; fill: var(--muted); }
svg .rule { stroke: var(--line); stroke-width: 1; }
svg .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
svg .faint { stroke-width: .8; opacity: .35; }
"""

Child = str | None
"""Text, which is escaped unless it is `Markup`; None is left out."""


class Markup(str):
    """HTML that is not escaped again."""


def escaped(text: str) -> Markup:
    """Text as HTML: characters of markup as entities, control characters but white space as pictures."""
    shown = "".join(
        chr(0x2400 + ord(c))
        if ord(c) < 32 and c not in "\n\t"
        else "\ufffd"
        if 0xD800 <= ord(c) < 0xE000
        else c
        for c in text.replace("\r\n", "\n")
    )
    return Markup(html.escape(shown))


def tag(name: str, *children: Child | Iterable[Child], **attributes: object) -> Markup:
    """An element. An attribute `class_` is `class`, and `stroke_width` is `stroke-width`; True has no value,
    and None is left out."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(str(value))}"')
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{joined(*children)}</{name}>")


def joined(*children: Child | Iterable[Child]) -> Markup:
    """Elements and texts after each other."""
    parts = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(escaped(child))
        elif child is not None:
            parts.append(joined(*child))
    return Markup("".join(parts))


def table(heading: Sequence[Child], rows: Iterable[Sequence[Child]], numbers: Iterable[int] = ()) -> Markup:
    """A table that scrolls on a narrow screen; the columns in `numbers` are aligned to the right."""
    right = set(numbers)

    def line(kind: str, cells: Sequence[Child]) -> Markup:
        return tag(
            "tr", [tag(kind, cell, class_="number" if i in right else None) for i, cell in enumerate(cells)]
        )

    head = tag("thead", line("th", heading)) if any(heading) else None
    body = tag("tbody", [line("td", row) for row in rows])
    return tag("div", tag("table", head, body), class_="scroll")


def picture(path: Path, caption: str, kind: str = "plot") -> Markup:
    """A PNG inside the page: a "plot", whose lightness is inverted on dark pages, or an "image", which may be
    small."""
    data = base64.b64encode(path.read_bytes()).decode()
    image = Markup(f'<img alt="{escaped(caption)}" src="data:image/png;base64,{data}">')
    return tag("figure", image, tag("figcaption", caption), class_=kind)


def folded(title: str, text: str, unfolded: bool = False) -> Markup:
    """A text below its title, which unfolds it."""
    return tag("details", tag("summary", title), tag("pre", text), open=unfolded or None, class_="card")


def grid(children: Iterable[Child]) -> Markup:
    """Elements side by side, as many as there is room for; empty without any."""
    content = joined(children)
    return tag("div", content, class_="grid") if content else content


def section(title: str, *children: Child | Iterable[Child]) -> Markup:
    """A heading and what is below it; empty without content."""
    content = joined(*children)
    return tag("section", tag("h2", title), content) if content else content


def page(title: str, *children: Child | Iterable[Child]) -> str:
    """The whole document."""
    head = (
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escaped(title)}</title><style>{STYLE}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{joined(*children)}</body></html>\n'
