"""Verdicts of `collsynth verify` in the formats of continuous integration: JUnit XML and SARIF."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from .. import __version__
from ..verifier.codes import CODES, CURES

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WHERE = re.compile(r"(.*):([0-9]+)")


def junit_text(results: Sequence[dict[str, Any]]) -> str:
    """One test case a file: a failure where it is wrong, an error where it cannot be read."""
    failures = sum(result["_code"] == 1 for result in results)
    errors = sum(result["_code"] == 2 for result in results)
    counts = f'tests="{len(results)}" failures="{failures}" errors="{errors}"'
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites {counts}>"]
    lines.append(f'  <testsuite name="collsynth verify" {counts} skipped="0">')
    for result in results:
        kind = result["format"] or "unreadable"
        head = f"    <testcase classname={quoteattr(kind)} name={quoteattr(_plain(result['file']))}"
        text = escape(_plain("\n".join(result["_lines"])))
        tag = {0: "system-out", 1: "failure", 2: "error"}[result["_code"]]
        if not text:
            lines.append(f"{head}/>")
            continue
        attributes = "" if tag == "system-out" else f" type={quoteattr(result['verdict'])}"
        if attributes:
            attributes += f" message={quoteattr(_plain(_first_error(result)))}"
        lines += [f"{head}>", f"      <{tag}{attributes}>{text}</{tag}>", "    </testcase>"]
    return "\n".join([*lines, "  </testsuite>", "</testsuites>", ""])


def _first_error(result: dict[str, Any]) -> str:
    first = next(f for f in result["findings"] if f["severity"] == "error")
    return f"{first['code']}: {first['message']}"


def _plain(text: str) -> str:
    """Without what XML cannot hold."""
    return _NO_XML.sub("?", text)


def sarif_text(results: Sequence[dict[str, Any]]) -> str:
    """SARIF 2.1.0: one rule a code, one result a finding, at its file and line."""
    used = sorted({finding["code"] for result in results for finding in result["findings"]})
    number = {code: index for index, code in enumerate(used)}
    rules = []
    for code in used:
        rule: dict[str, Any] = {"id": code}
        if code in CODES:
            rule |= {"shortDescription": {"text": CODES[code]}, "help": {"text": f"To mend it: {CURES[code]}."}}
        rules.append(rule)
    found = [
        {
            "ruleId": finding["code"],
            "ruleIndex": number[finding["code"]],
            "level": finding["severity"],
            "message": {"text": finding["message"]},
            "locations": [_location(result["file"], finding)],
        }
        for result in results
        for finding in result["findings"]
    ]
    driver = {"name": "collsynth", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": found}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _location(file: str, finding: dict[str, Any]) -> dict[str, Any]:
    match = _WHERE.fullmatch(finding["where"] or "")
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(file)}}
    if match:
        physical["region"] = {"startLine": max(1, int(match[2]))}
    location: dict[str, Any] = {"physicalLocation": physical}
    place = [f"{part} {finding[part]}" for part in ("rank", "threadblock", "step") if finding[part] is not None]
    if place:
        location["logicalLocations"] = [{"fullyQualifiedName": ", ".join(place)}]
    return location


def _uri(file: str) -> str:
    """Relative to where the command ran, as code hosts want it; absolute names as file URIs."""
    if file == "-":
        return "stdin"
    path = Path(file)
    return path.as_uri() if path.is_absolute() else quote(str(PurePosixPath(path)))
