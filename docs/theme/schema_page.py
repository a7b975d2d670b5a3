"""Writes a page about a JSON schema: a table of the fields of each object, in the schema's own words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def document(path: Path) -> str:
    """Returns the page in Markdown."""
    schema = json.loads(path.read_text())
    lines = [f"# {schema['title']}", "", schema["description"], ""]
    lines += [f"This page is made of [{path.name}](../{path.name}).", ""]
    if "properties" in schema:
        lines += ["## Fields", "", *_fields(schema)]
    for name, part in schema.get("$defs", {}).items():
        lines += [f"## `{name}`", "", *_describe(part, name)]
    return "\n".join(lines) + "\n"


def _describe(part: dict[str, Any], name: str) -> list[str]:
    lines = [part["description"], ""] if "description" in part else []
    if "properties" in part:
        return lines + _fields(part, name)
    variants = [one for one in _variants(part) if "properties" in one]
    if not variants:
        return [*lines, f"Type: {_type(part)}", ""]
    others = [_type(one) for one in _variants(part) if "properties" not in one]
    lines += [f"One of {len(variants) + len(others)} forms:", ""]
    lines += [f"- {text}" for text in others] + ([""] if others else [])
    for variant in variants:
        lines += _fields(variant, name)
    return lines


def _fields(part: dict[str, Any], name: str = "") -> list[str]:
    """The table of an object's fields, then the tables of objects in them."""
    lines = ["| field | type | meaning |", "|---|---|---|"]
    for field, kind in part["properties"].items():
        optional = "" if field in part.get("required", ()) or field == "event" else " (optional)"
        meaning = kind.get("description", "").replace("|", "\\|").replace("\n", "<br>")
        lines.append(f"| `{field}`{optional} | {_type(kind)} | {meaning} |")
    bases = [_type(base) for base in part.get("allOf", ())]
    lines += ["", f"And the fields of {', '.join(bases)}.", ""] if bases else [""]
    for field, kind in part["properties"].items():
        path = f"{name}.{field}" if name else field
        for inner in (kind, kind.get("items", {}), *_variants(kind)):
            if "properties" in inner:
                lines += [f"Fields of `{path}`:", "", *_fields(inner, path)]
    return lines


def _variants(part: dict[str, Any]) -> list[dict[str, Any]]:
    variants: list[dict[str, Any]] = part.get("oneOf", part.get("anyOf", []))
    return variants


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name})"
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    if _variants(field):
        return " or ".join(_type(one) for one in _variants(field))
    kinds = field.get("type", "object")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return " or ".join(f"array of {_type(field['items'])}" if one == "array" else one for one in kinds)
