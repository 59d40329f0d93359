"""A finding says in one line where to look."""

from __future__ import annotations

import json
import pickle

from kimi_sessions.findings import Finding


def test_a_finding_names_file_line_byte_and_reason() -> None:
    """What is not known is left out of the line, not shown as None."""
    whole = Finding("torn-line", "wire.jsonl", "a torn record", line_number=3, offset=120, length=40)
    assert str(whole) == "wire.jsonl:3: a torn record (byte 120)"
    assert str(Finding("bad-state", "state.json", "empty")) == "state.json: empty"
    assert str(Finding("x", "f", "r", offset=0)) == "f: r (byte 0)"


def test_a_finding_is_a_value_and_goes_into_json_and_through_a_pickle() -> None:
    """Equal fields are equal findings; all fields are in the dict, absent ones as null."""
    one = Finding("torn-line", "wire.jsonl", "a torn record", line_number=3)
    assert one == Finding("torn-line", "wire.jsonl", "a torn record", line_number=3)
    assert len({one, pickle.loads(pickle.dumps(one))}) == 1
    assert json.loads(json.dumps(one.as_dict())) == {
        "kind": "torn-line",
        "file": "wire.jsonl",
        "reason": "a torn record",
        "line_number": 3,
        "offset": None,
        "length": None,
    }
