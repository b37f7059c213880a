"""The recipe's JSON Schema (draft 2020-12), which editors complete and check from."""

from __future__ import annotations

from typing import Any

from sft_cli.recipe.schema import Recipe

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema of a recipe file: what a file may say, `extends` included; without it, model and data are required."""
    schema = Recipe.model_json_schema()
    definitions = schema["$defs"]
    source = {"anyOf": [{"type": "string", "minLength": 1}, {"$ref": "#/$defs/SourceSection"}]}
    data = definitions["DataSection"]["properties"]
    for name, fewest in (("train", 1), ("eval", 0)):
        text = {key: data[name][key] for key in ("description", "default", "title") if key in data[name]}
        data[name] = {"anyOf": [*source["anyOf"], {"type": "array", "items": source, "minItems": fewest}], **text}
    definitions["ModelSection"].pop("required")
    definitions["DataSection"].pop("required")
    properties = {
        "extends": {"type": "string", "minLength": 1, "description": "Another recipe, which this one is laid over"},
        **schema["properties"],
    }
    _allow_empty_sections(properties)
    _allow_empty_sections(definitions["ShardingSection"]["properties"])
    return {
        "$schema": DIALECT,
        "title": "sftune recipe",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "if": {"not": {"required": ["extends"]}},
        "then": {
            "required": ["model", "data"],
            "properties": {
                "model": {"type": "object", "required": ["path"]},
                "data": {"type": "object", "required": ["train"]},
            },
        },
        "$defs": definitions,
    }


def _allow_empty_sections(properties: dict[str, Any]) -> None:
    """Properties that refer to a section may be null as well: all its keys are commented out."""
    for name, entry in properties.items():
        if "$ref" in entry:
            properties[name] = {"anyOf": [{"$ref": entry["$ref"]}, {"type": "null"}]}
