"""The explorer with a table of the user's own."""

from dataclasses import replace

import pytest

pytest.importorskip("bokeh", reason="Bokeh is not installed")


import numpy as np
import torch

import ntkgp
from ntkgp.apps.explorer.model import csv_table, your_data
from ntkgp.apps.explorer.model.compute import network
from ntkgp.apps.explorer.model.csv_table import Table, parse
from ntkgp.apps.explorer.model.state import StateError
from ntkgp.apps.tables.columns import TableError
from tests.support import oracle
from tests.support.explorer_states import SMALL, TABLE


@pytest.mark.parametrize(
    ("content", "words"),
    {
        b"": "is empty",
        b" \n\n": "is empty",
        b"a,b\n1,2\n3": "1 row",
        b"a,b\n1,2\n3,4,5,6": "cannot be read",
        b"a\nb\n": "at least 2 are needed",
        b"a;b\n1;2\n3;4": "separated by commas",
        b"\0\1\2": "not a text file",
        b"a,b\n1,2\n\xff\xfe,2\n": "not UTF-8 text: the byte 0xff in line 3",
        "größe,b\n1,2\n3,4\n".encode("latin-1"): "not UTF-8 text: the byte 0xf6 in line 1",
        "a,b\n1,2\n3,4\n".encode("utf-16"): "not a text file",
        b"a,b\n": "0 row",
        b"a,b\n1,2\n": "1 row",
        b",\n1,2\n3,4\n": "no column with a name",
        b" ,,\n1,2,3\n3,4,5\n": "no column with a name",
        b"a,b,a\n1,2,3\n3,4,5\n": "two columns 'a'",
        b"a,a\nx,2\ny,4\n": "two columns 'a'",
        b"a,b\n1,inf\n2,-inf\n3,NaN\n": "0 row",
        b"a,b\n1,2\n1e200,3\n": "1e\\+200 in column 'a'",
        b"a,b\n1,2\n3,-1e308\n": "-1e\\+308 in column 'b'",
        b"a,b\r1,2\r3,4\r": "cannot be read",
        b'a,"b\n1,2\n3,4\n': "cannot be read",
        b'a,b\n1,2"\n"': "cannot be read",  # polars panics here
        b",".join(b"c%d" % k for k in range(60)) + b"\n" + (b",".join([b"1"] * 60) + b"\n") * 2: "at most 50",
    }.items(),
)
def test_a_damaged_table_is_refused_with_a_word(content: bytes, words: str):
    with pytest.raises(TableError, match=words):
        parse(content, "my.csv")


def test_what_is_left_out_of_a_table_is_said():
    rows = "\n".join(f"{k},{k % 7},word" for k in range(csv_table.MAX_ROWS + 500))
    table, notes = parse(f"a,b,c\n{rows}\n,1,x\n1e999,2,x\n".encode())
    assert table.names == ("a", "b")
    assert table.rows == csv_table.MAX_ROWS
    assert [note.split()[0] for note in notes] == ["columns", "2", "1000"]
    assert parse(f"a,b,c\n{rows}\n".encode())[0] == parse(f"a,b,c\n{rows}\n".encode())[0]
    with pytest.raises(TableError, match="no column"):
        table.column("z")


def test_a_column_without_a_name_is_left_out():
    table, notes = parse(b",size,  ,price\n0,1,7,2\n1,3,8,4\n2,5,9,5\n")  # pandas writes its row numbers without a name
    assert table == Table(("size", "price"), ((1.0, 3.0, 5.0), (2.0, 4.0, 5.0)))
    assert notes == ("2 columns without a name left out",)


def test_a_first_line_of_numbers_is_said():
    table, notes = parse(b"1,2.5\n3,4\n5,6\n")
    assert table == Table(("1", "2.5"), ((3.0, 5.0), (4.0, 6.0)))
    assert notes == ("the first line was read as column names: 1, 2.5",)


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\n\r\n"], ids=["plain", "byte-order mark", "empty lines"])
def test_names_are_read_as_they_are_quoted(start: bytes):
    table, notes = parse(start + b'"say ""a, b""","c\nd",a_duplicated_0,\xc3\xb6\r\n1,2,3,4\r\n5,6,7,8\r\n')
    assert table.names == ('say "a, b"', "c\nd", "a_duplicated_0", "ö")
    assert table.columns == ((1.0, 5.0), (2.0, 6.0), (3.0, 7.0), (4.0, 8.0))
    assert notes == ()


def test_a_table_s_posterior_is_the_library_s_in_the_table_s_units():
    state = replace(SMALL, table=TABLE, target="c", inputs=("a", "b"), tuned=False, noise_var=0.1)
    model = your_data.fit(state)
    x, y = torch.tensor(TABLE.columns[:2]).double().T, torch.tensor(TABLE.columns[2]).double()
    scale = (x.mean(dim=0), x.std(dim=0, correction=0)), (y.mean(), y.std(correction=0))
    scaled_x, scaled_y = (x - scale[0][0]) / scale[0][1], (y - scale[1][0]) / scale[1][1]
    net = network(state, 2, ntkgp.networks.TrigonometricInputs.from_data(scaled_x, margin=0.3))
    truth = oracle.pose(net, scaled_x, scaled_y, scaled_x, 0.1)
    p = model.predict(x)
    assert oracle.error(p.mean, scale[1][0] + scale[1][1] * truth.mean) < 1e-9
    assert oracle.error(p.std, scale[1][1] * truth.variance.sqrt()) < 1e-9


def test_the_next_point_is_where_least_is_known():
    state = replace(SMALL, table=TABLE, target="c", inputs=("a",), tuned=False)
    model = your_data.fit(state)
    where, std = your_data.next_point(model)
    assert 3.0 < float(where[0]) < 9.0  # the gap of that column
    grid = torch.linspace(0, 9, 300).double().unsqueeze(1)
    assert std == pytest.approx(float(model.predict(grid).std.max()), rel=1e-2)
    both = your_data.fit(replace(state, inputs=("a", "b")))
    picture = your_data.uncertainty_map(both)
    corner = torch.stack([picture.high[0], picture.low[1]]).unsqueeze(0)
    assert float(picture.std[0, -1]) == pytest.approx(float(both.predict(corner).std), rel=1e-6)  # rows are the second input
    cut = your_data.slice_of(both, 5.0)
    assert float(cut.near[0]) == 1.0
    assert cut.prediction.mean.shape == cut.x.shape


def test_a_constant_column_and_tuning_give_no_trouble():
    table = Table(("a", "b"), ((1.0,) * 6, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)))
    for chosen in (
        replace(SMALL, table=table, target="b", inputs=("a",)),
        replace(SMALL, table=table, target="a", inputs=("b",)),
    ):
        model = your_data.fit(replace(chosen, tuned=False))
        assert np.isfinite(model.predict(model.x).mean.numpy()).all()
    with pytest.raises(StateError, match="load a table"):
        your_data.fit(SMALL)
