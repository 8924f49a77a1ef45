"""Tables of JSON lines and of Excel workbooks: kinds of values, missing ones, damaged and hostile files."""

import datetime
import json
import os
import sys
import zipfile
from pathlib import Path

import pandas as pd
import pytest

from compshift import InputError
from compshift.data import load_table, typed_tables
from compshift.data.audit import read_group_counts
from compshift.data.raw_tables import column_kind, is_typed, read_raw_columns
from compshift.data.table_files import column_names, read_raw
from compshift.data.typed_tables import MAX_DEPTH, read_typed

ROWS = [
    {"id": "007", "age": 31, "share": 0.5, "member": True, "since": "2020-01-31", "job": "cook"},
    {"id": "008", "age": 45, "share": 2, "member": False, "since": "2021-02-28", "job": None},
    {"id": "009", "age": None, "member": True, "since": None, "job": "nurse"},
]
SHEET = "xl/worksheets/sheet1.xml"
KINDS = {"id": "category", "age": "number", "share": "number", "member": "boolean", "since": "date", "job": "category"}


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_sheet(path, rows):
    """Write rows of cells to the first of two sheets."""
    book = pytest.importorskip("openpyxl").Workbook()
    for row in rows:
        book.active.append(row)
    book.create_sheet("other").append(["not", "read"])
    book.save(path)
    return path


def replace_parts(path, changes):
    """Apply functions to the content of parts of a workbook."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, changes.get(name, bytes)(content))


def check_columns(path, kinds):
    columns = read_raw_columns(path, list(kinds))
    assert {name: column_kind(column, typed=is_typed(path)) for name, column in columns.items()} == kinds
    assert columns["id"].tolist() == ["007", "008", "009"]
    assert columns["share"][:2].tolist() == [0.5, 2]
    assert columns["since"][0] == pd.Timestamp("2020-01-31")
    missing = {name: column.isna().tolist() for name, column in columns.items() if column.isna().any()}
    last, middle = [False, False, True], [False, True, False]
    assert missing == {"age": last, "share": last, "since": last, "job": middle}


class TestJSONLines:
    def test_columns_of_every_kind(self, tmp_path):
        path = write_lines(tmp_path / "t.jsonl", ROWS)
        assert column_names(path) == list(KINDS)
        check_columns(path, KINDS)

    def test_labels_and_counts(self, tmp_path):
        path = write_lines(tmp_path / "t.ndjson", [{"y": 1, "a": "x", "f": 2.5}, {"y": 0, "a": "z", "f": 1}])
        data = load_table(path, target="y", attributes="a", features=["f"])
        assert (data.space.values, data.X.tolist()) == (((0, 1), ("x", "z")), [[2.5], [1.0]])
        assert read_group_counts(path, ["y", "a"]).count.tolist() == [1, 1]

    def test_blank_lines_and_a_byte_order_mark(self, tmp_path):
        (tmp_path / "t.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}')
        assert read_raw(tmp_path / "t.jsonl", ["a"]).column("a").to_pylist() == [1, 2]

    def test_rows_longer_than_a_block_of_arrow(self, tmp_path):
        path = write_lines(tmp_path / "t.jsonl", [{"a": "x" * 3_000_000}, {"a": "y"}])
        assert len(read_raw(path, ["a"]).column("a")[0].as_py()) == 3_000_000

    def test_a_changed_file_is_read_again(self, tmp_path):
        assert read_typed(write_lines(tmp_path / "t.jsonl", [{"a": 1}])).column_names == ["a"]
        assert read_typed(write_lines(tmp_path / "t.jsonl", [{"b": 1}, {"c": 2}])).column_names == ["b", "c"]

    def test_a_changed_file_of_the_same_size_is_read_again(self, tmp_path):
        path = write_lines(tmp_path / "t.jsonl", [{"a": 1}])
        assert read_typed(path).to_pydict() == {"a": [1]}
        before = path.stat().st_mtime_ns
        os.utime(write_lines(path, [{"a": 2}]), ns=(before, before + 1_000_000_000))
        assert read_typed(path).to_pydict() == {"a": [2]}

    def test_a_change_within_the_resolution_of_the_clock_is_noticed(self, tmp_path, monkeypatch):
        path = write_lines(tmp_path / "t.jsonl", [{"a": 1}])
        status = path.stat()
        monkeypatch.setattr(Path, "stat", lambda *_, **__: status)  # a coarse clock: the change has the same times
        assert read_typed(path).to_pydict() == {"a": [1]}
        write_lines(path, [{"a": 2}])
        assert read_typed(path).to_pydict() == {"a": [2]}

    def test_a_file_is_read_once(self, tmp_path, monkeypatch):
        path = write_lines(tmp_path / "t.jsonl", [{"a": 1}])
        monkeypatch.setattr(typed_tables, "CLOCK_RESOLUTION", 0)
        assert read_typed(path) is read_typed(path)

    def test_nested_labels_are_one_sentence_and_other_columns_can_be_used(self, tmp_path):
        path = write_lines(tmp_path / "t.jsonl", [{"y": [1], "b": {"c": 1}, "a": 2}])
        with pytest.raises(InputError, match=r"column 'y' has type list<item: int64>: it needs one value per row"):
            load_table(path, target="y", features=["a"])
        assert column_kind(read_raw_columns(path, ["b"])["b"], typed=True) is None
        assert read_raw(path, ["a"]).column("a").to_pylist() == [2]

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (b"", "has no rows: pass a table with at least one row"),
            (b"\n \n", "has no rows"),
            (b'[{"a": 1}]', "line 1 is '[{\"a\": 1}]', not a JSON object: write one object"),
            (b'{"a": 1}\n{"a": 2', "line 2 is '{\"a\": 2', not a JSON object"),
            (b"a,b\n1,2\n", "line 1 is 'a,b\\n', not a JSON object"),
            (b'{"a": "\xff"}', "is not UTF-8 text (line 1): save it as UTF-8"),
            (b'{"a": "\\ud800"}', "not a JSON object"),
            (b'{"a": 1}\n{"a": "x"}', "the column 'a' has values of two kinds, number and string: write all of them"),
            (b'{"a": 1, "a": 2}', "cannot be read as a table"),
            (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not a JSON object"),
            (b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "not a JSON object"),
            (b'{"a": "' + b"x" * (1 << 24) + b'"}', "line 1 has more than 16 MB: shorten it"),
            (b"".join(b'{"a%d": 1}\n' % row for row in range(7000)), "more than 200 times as much: it is damaged"),
            (b"".join(b'{"a%d": 1}\n' % row for row in range(30_001)), "has more than 30,000 columns"),
        ],
        ids=range(14),
    )
    def test_bad_files_are_one_sentence(self, tmp_path, content, sentence):
        (tmp_path / "t.jsonl").write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_raw(tmp_path / "t.jsonl", ["a"])
        assert sentence in str(caught.value)
        assert "t.jsonl" in str(caught.value)
        assert len(str(caught.value)) < 500


class TestExcel:
    def test_columns_of_every_kind(self, tmp_path):
        rows = [[row.get(name) for name in KINDS] for row in ROWS]
        for row in rows:
            row[4] = None if row[4] is None else datetime.datetime.fromisoformat(row[4])
        path = write_sheet(tmp_path / "t.xlsx", [list(KINDS), *rows])
        assert column_names(path) == list(KINDS)
        check_columns(path, KINDS | {"id": "number"})  # numbers that are stored as text are common in Excel

    def test_blank_rows_and_columns_around_the_table(self, tmp_path):
        path = write_sheet(
            tmp_path / "t.xlsx", [[], ["a", None, 2020], [1, None, "x"], [None, "", None], [3], [None, None]]
        )
        assert read_typed(path).to_pydict() == {"a": [1, None, 3], "2020": ["x", None, None]}

    def test_words_for_missing_values_and_cells_of_several_kinds(self, tmp_path):
        noon = datetime.time(12, 30)
        rows = [["n", "m", "t"], [1, 2, noon], ["NA", "x ", noon], [2.5, True, "#N/A"]]
        found = read_typed(write_sheet(tmp_path / "t.xlsx", rows)).to_pydict()
        assert found["n"] == [1.0, None, 2.5]
        assert found["m"] == ["2", "x", "True"]
        assert found["t"] == ["12:30:00", "12:30:00", None]

    def test_labels_and_counts(self, tmp_path):
        path = write_sheet(tmp_path / "t.xlsx", [["y", "a", "f"], [1, "x", 2.5], [0, "z", 1]])
        data = load_table(path, target="y", attributes="a", features=["f"])
        assert (data.space.values, data.X.tolist()) == (((0, 1), ("x", "z")), [[2.5], [1.0]])
        assert read_group_counts(path, ["y", "a"]).count.tolist() == [1, 1]

    @pytest.mark.parametrize(
        ("rows", "sentence"),
        [
            ([], "column 'a' is not known"),
            ([["a"]], "has no rows"),
            ([["a", None, "b"], [1, 2, 3]], "column 2 has values but no name: write one into the first row"),
            ([["a"], [1, 2]], "column 2 has values but no name"),
            ([["a", "a"], [1, 2]], "'t.xlsx' has several columns named 'a': rename all but one"),
        ],
    )
    def test_bad_sheets_are_one_sentence(self, tmp_path, rows, sentence):
        with pytest.raises(InputError) as caught:
            read_raw(write_sheet(tmp_path / "t.xlsx", rows), ["a"])
        assert sentence in str(caught.value)

    def test_damaged_files_are_one_sentence(self, tmp_path):
        path = write_sheet(tmp_path / "t.xlsx", [["a"], *([row] for row in range(100))])
        whole = path.read_bytes()
        for content in (b"", b"a\n1\n", whole[: len(whole) // 2], whole.replace(b"PK", b"KP")):
            path.write_bytes(content)
            with pytest.raises(InputError, match="damaged, protected by a password or of another kind; save it again"):
                read_typed(path)

    def test_a_part_without_xml_is_one_sentence(self, tmp_path):
        path = write_sheet(tmp_path / "t.xlsx", [["a"], [1]])
        replace_parts(path, {SHEET: lambda _: b"<worksheet"})
        with pytest.raises(InputError, match="cannot be read as an Excel workbook"):
            read_typed(path)

    @pytest.mark.parametrize("cell", ["XFD1048576", "A99999999999"])
    def test_a_cell_far_away_does_not_fill_the_memory(self, tmp_path, cell):
        path = write_sheet(tmp_path / "t.xlsx", [[f"c{number}" for number in range(1000)], [1]])
        row = f'<row r="{cell.lstrip("XFDA")}"><c r="{cell}"><v>1</v></c></row></sheetData>'.encode()
        replace_parts(path, {SHEET: lambda content: content.replace(b"</sheetData>", row)})
        with pytest.raises(InputError, match=r"more than 200 times as much|cannot be read as an Excel workbook"):
            read_typed(path)

    def test_parts_that_unpack_to_far_more_than_the_file_are_refused(self, tmp_path, monkeypatch):
        path = write_sheet(tmp_path / "t.xlsx", [["a"], ["x" * 32_000]])
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("xl/media/large.bin", bytes(10_000_000))
        monkeypatch.setattr("compshift.data.untrusted.ALWAYS_ALLOWED_BYTES", 1_000_000)
        with pytest.raises(InputError, match="more than 200 times as much: it is damaged or designed"):
            read_typed(path)

    def test_without_openpyxl(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "openpyxl", None)
        (tmp_path / "t.xlsx").write_bytes(b"")
        with pytest.raises(InputError, match=r"'t.xlsx' needs openpyxl: run pip install 'compshift\[excel\]', or save"):
            column_names(tmp_path / "t.xlsx")
