"""The page that documents the API for people, made from its OpenAPI description."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

Part = Mapping[str, Any]

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>API of mjp serve</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/app.css">
</head>
<body class="reference">
<div class="frame">
<header class="top">
<p class="kind"><a href="/">mjp serve</a></p>
<h1>API</h1>
<p class="lead">{about}</p>
<p>Machine-readable: <a href="/openapi.json">openapi.json</a>.</p>
</header>
<main>
<nav aria-label="Routes"><ul class="toc">{contents}</ul></nav>
{routes}
<section class="route"><h2>What they exchange</h2>{schemas}</section>
</main>
</div>
</body>
</html>
"""


def reference_page(openapi: Part) -> str:
    """The whole page."""
    routes = [
        (method.upper(), path, operation)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    schemas: Part = openapi["components"]["schemas"]
    return _PAGE.format(
        about=_prose(openapi["info"]["description"]),
        contents="".join(_entry(*route) for route in routes),
        routes="".join(_route(*route) for route in routes),
        schemas="".join(_schema(name, schema) for name, schema in schemas.items()),
    )


def _anchor(method: str, path: str) -> str:
    return escape(f"{method}-{path}".lower().strip("/").replace("/", "-").replace("{", ""))


def _entry(method: str, path: str, operation: Part) -> str:
    return (
        f'<li><a href="#{_anchor(method, path)}"><code>{method} {escape(path)}</code> '
        f"<span>{escape(operation['summary'])}</span></a></li>"
    )


def _route(method: str, path: str, operation: Part) -> str:
    parts = [
        f'<section class="route" id="{_anchor(method, path)}">',
        f"<h2><code><b>{method}</b> {escape(path)}</code></h2>",
        *(f"<p>{_prose(text)}</p>" for text in operation["description"].split("\n\n")),
        _parameters(operation.get("parameters", [])),
        _body(operation.get("requestBody")),
        _answers(operation["responses"]),
        "</section>",
    ]
    return "".join(parts)


def _parameters(parameters: list[Part]) -> str:
    if not parameters:
        return ""
    rows = [
        [
            f"<code>{escape(one['name'])}</code> <small>{escape(one['in'])}</small>",
            _kind(one["schema"]),
            _prose(one.get("description", "")),
        ]
        for one in parameters
    ]
    return _table("Parameters", ("name", "kind", "what"), rows)


def _body(body: Part | None) -> str:
    if body is None:
        return ""
    kinds = []
    for media, content in body["content"].items():
        kind = _kind(content.get("schema", {})) if media == "application/json" else "the file"
        kinds.append(f"<code>{escape(media)}</code>: {kind}")
    told = f" {_prose(body['description'])}" if "description" in body else ""
    return f"<p><b>Body.</b> {'; '.join(kinds)}.{told}</p>"


def _answers(responses: Mapping[str, Part]) -> str:
    rows = []
    for status, one in sorted(responses.items()):
        kinds = []
        for media, content in one.get("content", {}).items():
            plain = media == "application/json"
            kinds.append(
                _kind(content.get("schema", {})) if plain else f"<code>{escape(media)}</code>"
            )
        rows.append([escape(status), " or ".join(kinds), _prose(one.get("description", ""))])
    return _table("Answers", ("status", "content", "when"), rows)


def _schema(name: str, schema: Part) -> str:
    required = schema.get("required", [])
    rows = []
    for field, one in schema.get("properties", {}).items():
        optional = "" if field in required else " <small>optional</small>"
        told = _prose(one.get("description", ""))
        if "default" in one:
            told += f" Default <code>{escape(json.dumps(one['default']))}</code>."
        rows.append([f"<code>{escape(field)}</code>{optional}", _kind(one), told])
    about = _prose(schema.get("description", ""))
    return (
        f'<div id="{escape(name)}"><h3>{escape(name)}</h3><p>{about}</p>'
        + _table(f"Fields of {name}", ("name", "kind", "what"), rows)
        + "</div>"
    )


def _kind(schema: Part) -> str:
    """A type in a few words, with its bounds."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return " or ".join(_kind(one) for one in schema[choice])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(one))}</code>" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        return f"object of {_kind(inner)}" if isinstance(inner, Mapping) else "object"
    kind = escape(str(schema.get("type", "anything")))
    names = (("minimum", "≥"), ("maximum", "≤"), ("maxLength", "length ≤"))
    bounds = [f"{sign} {schema[name]:g}" for name, sign in names if name in schema]
    return f"{kind} {', '.join(bounds)}".strip()


def _table(caption: str, heads: tuple[str, ...], rows: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{one}</th>' for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{one}</td>' for one in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _prose(text: str) -> str:
    """A sentence whose `code` is set as such."""
    parts = text.split("`")
    return "".join(
        f"<code>{escape(one)}</code>" if place % 2 else escape(one)
        for place, one in enumerate(parts)
    )
