"""Checks what rlaunch writes against the JSON schemas in ``docs/``."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema_rs
from paths import ROOT

Invalid = jsonschema_rs.ValidationError


@cache
def validator(name: str, kind: str = "") -> jsonschema_rs.Draft202012Validator:
    """That of ``docs/NAME.schema.json``, or of one of its ``$defs``. The schema itself is checked too."""
    schema = json.loads((ROOT / f"docs/{name}.schema.json").read_text())
    if kind:
        schema["oneOf"] = [{"$ref": f"#/$defs/{kind}"}]
    jsonschema_rs.meta.validate(schema)
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=False)


def validate(value: Any, name: str, kind: str = "") -> None:
    """Raises ``Invalid`` if the value is not what the schema describes."""
    validator(name, kind).validate(value)
