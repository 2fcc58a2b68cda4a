"""The state of the explorer travels through JSON and links; anything else is refused."""

import base64
import json
from dataclasses import replace

import pytest

pytest.importorskip("bokeh", reason="Bokeh is not installed")


from ntkgp.apps.explorer.model.state import MAX_POINTS, State, StateError
from tests.support.explorer_states import TABLE, every_state


@every_state()
def test_a_state_survives_json_and_links(state: State):
    state = replace(state, shown=("exact",), table=TABLE, target="c", inputs=("a", "b"))
    assert State.from_json(state.to_json()) == state
    assert State.from_link(state.to_link()) == state
    assert set(state.to_link()) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


BAD = {
    "nothing": b"",
    "not JSON": b"{",
    "not a record": b"[1]",
    "not ours": b'{"points": []}',
    "deep": b"[" * 100_000,
    **{
        name: json.dumps({"ntkgp-explorer": 1, **record}).encode()
        for name, record in {
            "unknown field": {"colour": 1},
            "negative noise": {"noise_var": -1},
            "noise is a text": {"noise_var": "1"},
            "noise is a truth": {"noise_var": True},
            "no noise": {"noise_var": float("nan")},
            "endless noise": {"noise_var": float("inf")},
            "huge number": {"noise_var": 10**400},
            "half a predictor": {"rank": 2.5},
            "no predictors": {"rank": 0},
            "absurd width": {"width": 10**9},
            "absurd depth": {"depth": 1000},
            "unknown problem": {"problem": "../../etc/passwd"},
            "problem is a list": {"problem": []},
            "points are no pairs": {"points": [[1, 2, 3]]},
            "points are no list": {"points": "abc"},
            "a point far away": {"points": [[100, 0]]},
            "too many points": {"points": [[0, 0]] * (MAX_POINTS + 1)},
            "unknown layer": {"shown": ["everything"]},
            "layers are no list": {"shown": "exact"},
            "tuned is a number": {"tuned": 1},
            "table without columns": {"table": {"names": ["a"]}},
            "table is ragged": {"table": {"names": ["a", "b"], "columns": [[1, 2], [1]]}},
            "table of texts": {"table": {"names": ["a", "b"], "columns": [["x", "y"], [1, 2]]}},
            "huge number in a table": {"table": {"names": ["a", "b"], "columns": [[10**400, 1], [1, 2]]}},
            "number whose square overflows": {
                "table": {"names": ["a", "b"], "columns": [[1e151, 1], [1, 2]]},
                "target": "b",
                "inputs": ["a"],
            },
            "column without a name": {
                "table": {"names": ["", "b"], "columns": [[1, 2], [1, 2]]},
                "target": "b",
                "inputs": [""],
            },
            "target not in the table": {
                "table": {"names": ["a", "b"], "columns": [[1, 2], [1, 2]]},
                "target": "z",
                "inputs": ["a"],
            },
            "target is an input": {"table": {"names": ["a", "b"], "columns": [[1, 2], [1, 2]]}, "target": "a", "inputs": ["a"]},
        }.items()
    },
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_what_is_no_state_is_refused_with_a_word(text: bytes):
    with pytest.raises(StateError, match=r"\w+ "):
        State.from_json(text)
    with pytest.raises(StateError):
        State.from_link(base64.urlsafe_b64encode(text).decode())


@pytest.mark.parametrize("letters", ["!!", "é", "a", "AAAA", "%00"])
def test_a_link_that_is_none_is_refused(letters: str):
    with pytest.raises(StateError):
        State.from_link(letters)
