"""Contract files: YAML, lines, folders, and one report of every fault."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawl_pipeline.errors import ContractErrors, ContractFault, UsageError
from crawl_pipeline.pipeline.contract_files import load_contracts, read_contract, secret_headers, warnings
from crawl_pipeline.pipeline.contract_yaml import YamlText

PROJECT = Path(__file__).parents[2]
SHOP = """\
source: shop
seeds: [https://shop.example/]
politeness:
  min_delay: 2s

records:
  - type: product
    key: [sku]
    fields:
      sku: {css: ".sku", required: true}
      no: {css: ".no"}
"""


def write(folder: Path, name: str, text: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def faults(folder: Path) -> dict[str, list[ContractFault]]:
    with pytest.raises(ContractErrors) as caught:
        load_contracts([folder])
    assert caught.value.exit_code == 2
    return {Path(error.file).name: list(error.faults) for error in caught.value.errors}


def test_contracts_are_loaded_by_source_whatever_their_files_are_called(tmp_path: Path) -> None:
    write(tmp_path, "b.yml", SHOP)
    write(tmp_path, "a.yaml", SHOP.replace("source: shop", "source: other"))
    write(tmp_path, "notes.txt", "source: [")
    write(tmp_path, ".hidden", "source: [")
    (tmp_path / "folder.yaml").mkdir()
    found = load_contracts([tmp_path])
    assert list(found) == ["other", "shop"]
    assert found["shop"].file == tmp_path / "b.yml"
    assert found["shop"].text == SHOP
    assert list(found["shop"].contract.records[0].fields) == ["sku", "no"]


def test_folder_named_twice_is_read_once(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", SHOP)
    assert list(load_contracts([tmp_path, tmp_path / "..", tmp_path / ".." / tmp_path.name])) == ["shop"]


def test_no_folder_and_an_empty_folder_hold_no_contract(tmp_path: Path) -> None:
    assert load_contracts([]) == {}
    assert load_contracts([tmp_path]) == {}


def test_report_reads_like_the_one_of_the_handbook(tmp_path: Path) -> None:
    text = SHOP.replace("2s", "1 sec").replace("[sku]", "[skuu]")
    file = write(tmp_path, "shop.yaml", text)
    with pytest.raises(ContractErrors) as caught:
        load_contracts([tmp_path])
    assert str(caught.value) == (
        f"{file}: 2 problems\n"
        '  politeness.min_delay  "1 sec": use a duration such as 1s, 500ms or 2m  (line 4)\n'
        '  records[0].key        "skuu" names no field; fields are sku, no  (line 8)'
    )


def test_every_fault_of_every_file_is_reported_at_once(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", SHOP + "polite: {}\n")
    write(tmp_path, "b.yaml", "source: b\nseeds: [\n")
    write(tmp_path, "c.yaml", SHOP)
    write(tmp_path, "d.yaml", "source: d\nsource: e\nseeds: [https://h/]\nlimits: {max_pages: 0}\n")
    found = faults(tmp_path)
    assert {name: [(fault.path, fault.line) for fault in of] for name, of in found.items()} == {
        "a.yaml": [("polite", 12)],
        "b.yaml": [("(file)", 3)],
        "d.yaml": [("source", 2), ("limits.max_pages", 4)],
    }


@pytest.mark.parametrize(
    ("text", "path", "line", "words"),
    [
        ("", "(file)", 1, "is empty: a contract starts with source: NAME"),
        ("# nothing\n", "(file)", 1, "is empty"),
        ("null\n", "(file)", 1, "is no contract"),
        ("\n- a\n- b\n", "(file)", 2, "is no contract: use keys and values"),
        ("hello", "(file)", 1, "is no contract"),
        ("a: [1\nb: 2\n", "(file)", 2, "is no YAML"),
        ("a: b: c\n", "(file)", 1, "is no YAML"),
        ("a: 1\n\tb: 2\n", "(file)", 2, "is no YAML"),
        ("a: \x01\n", "(file)", None, "is no YAML"),
        ("a: 1\n---\nb: 1\n", "(file)", 2, "is no YAML"),
        ("a: !!python/object:os.system x\n", "(file)", 1, "is no YAML"),
        ("? [a]\n: x\n", "(file)", 1, "is no YAML"),
        ("a: 2024-13-45\n", "(file)", None, "has a value that YAML cannot read"),
        ("a: !!int abc\n", "(file)", None, "has a value that YAML cannot read"),
        ("a: &x [1]\nb: *x\n", "(file)", 2, "uses an alias"),
        ("a: &x [1]\nb:\n- *x\n- *x\n", "(file)", 3, "uses an alias"),
        ("a: " + "[" * 40 + "]" * 40, "(file)", 1, "nested deeper than 30 levels"),
        ("a: " + "[" * 100_000, "(file)", 1, "nest"),
        (b"a: 1\nb: \xff\n", "(file)", 2, "is not UTF-8"),
        ("x: '" + "a" * 1_000_000 + "'", "(file)", None, "is larger than 1000000 bytes"),
        (
            SHOP + "limits: {max_pages: 1, max_pages: 2}\n",
            "limits.max_pages",
            12,
            "stands here twice, first in line 12",
        ),
        (SHOP + "on: 1\n", "on", 12, "is no key of a contract here"),
        (SHOP + "1: 1\n", "1", 12, "is no key of a contract here"),
        (SHOP + "<<: {owner: x}\n", "<<", 12, "is no key of a contract here"),
        (
            SHOP + "fetch:\n  headers:\n    X: A\n    X.Y: a b\n",
            "fetch.headers.X.Y",
            15,
            "name an environment variable",
        ),
        (SHOP.replace("source: shop\n", ""), "source", 1, "is missing"),
        (
            SHOP.replace("key: [sku]", "match: [/a, b]\n    key: [sku]"),
            "records[0].match[1]",
            8,
            "a path glob starts with",
        ),
    ],
)
def test_faulty_file_is_told_with_its_line(
    tmp_path: Path, text: str | bytes, path: str, line: int | None, words: str
) -> None:
    write(tmp_path, "a.yaml", text)
    (fault,) = faults(tmp_path)["a.yaml"]
    assert (fault.path, fault.line) == (path, line)
    assert words in fault.message


def test_bomb_of_aliases_is_refused_before_it_grows(tmp_path: Path) -> None:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 20)]
    write(tmp_path, "a.yaml", "\n".join(["l0: &l0 [x]", *levels]))
    (fault,) = faults(tmp_path)["a.yaml"]
    assert "uses an alias" in fault.message


def test_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", b"\xef\xbb\xbf" + SHOP.replace("\n", "\r\n").encode())
    assert list(load_contracts([tmp_path])) == ["shop"]


def test_one_source_in_two_files_is_a_fault_that_names_both(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", SHOP)
    write(tmp_path, "b.yaml", "# copy\n" + SHOP)
    (fault,) = faults(tmp_path)["b.yaml"]
    assert fault.path == "source"
    assert fault.line == 2
    assert fault.message == f'"shop" is the source of {tmp_path / "a.yaml"} already: rename one of them'


def test_missing_folder_is_a_fault_that_names_the_variable(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", SHOP)
    with pytest.raises(ContractErrors) as caught:
        load_contracts([tmp_path / "none", tmp_path / "a.yaml", tmp_path])
    assert [error.faults[0].message.split(" (")[0] for error in caught.value.errors] == [
        "does not exist",
        "is no folder",
    ]
    assert str(caught.value).count("CRAWL_SOURCES") == 2


def test_link_to_nowhere_is_a_fault(tmp_path: Path) -> None:
    os.symlink(tmp_path / "gone", tmp_path / "a.yaml")
    (fault,) = faults(tmp_path)["a.yaml"]
    assert fault.message == "cannot be read (No such file or directory)"


def test_pipe_is_a_fault_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ContractErrors, match="no regular file"):
        load_contracts([tmp_path])


def test_bundled_contracts_are_valid_and_free_of_warnings() -> None:
    folders = [PROJECT / "crawl_pipeline" / "sources", PROJECT / "crawl_pipeline" / "demo" / "sources"]
    found = load_contracts(folders)
    assert "demo_shop" in found
    assert [text for loaded in found.values() for text in warnings(loaded.contract)] == []


def test_secrets_come_from_the_environment_and_stay_out_of_the_contract(tmp_path: Path) -> None:
    text = SHOP + "fetch: {headers: {Authorization: SHOP_AUTH, X-Key: SHOP_KEY}}\n"
    contract = read_contract(write(tmp_path, "a.yaml", text)).contract
    headers = secret_headers(contract, {"SHOP_AUTH": "Bearer hunter2", "SHOP_KEY": "k"})
    assert headers == {"Authorization": "Bearer hunter2", "X-Key": "k"}
    assert "hunter2" not in contract.to_json() + repr(contract)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "environment variable SHOP_AUTH, SHOP_KEY; set it"),
        ({"SHOP_AUTH": "hunter2", "SHOP_KEY": ""}, "environment variable SHOP_KEY; set it"),
        ({"SHOP_AUTH": "hunter2\r\nX: y", "SHOP_KEY": "k"}, "SHOP_AUTH holds a line break"),
    ],
)
def test_secret_that_is_not_there_is_asked_for(tmp_path: Path, environment: dict[str, str], words: str) -> None:
    text = SHOP + "fetch: {headers: {Authorization: SHOP_AUTH, X-Key: SHOP_KEY}}\n"
    contract = read_contract(write(tmp_path, "a.yaml", text)).contract
    with pytest.raises(UsageError, match=words) as caught:
        secret_headers(contract, environment)
    assert "hunter2" not in str(caught.value)


@given(st.one_of(st.text(), st.text(alphabet="ab:- \n[]{}&*!?|>'\"#%@`,1.\t", max_size=60)), st.text())
def test_no_text_makes_the_reader_raise(text: str, path: str) -> None:
    found = YamlText(text)
    assert found.is_readable or found.faults
    line = found.line(path)
    assert line is None or line >= 1
