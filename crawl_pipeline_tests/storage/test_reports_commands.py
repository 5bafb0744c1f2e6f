"""`sources` and `db`: contracts are checked and listed, sources paused and resumed, the database's URL printed."""

from __future__ import annotations

import sqlalchemy as sa
from click.testing import CliRunner

from crawl_pipeline.cli import main
from crawl_pipeline.pipeline.contract_files import LoadedContract
from crawl_pipeline.pipeline.crawl import sync_source
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.storage.commanding import Desk
from crawl_pipeline_tests.storage.filled import CONTRACT, fill


def test_valid_contracts_are_named_with_their_warnings(desk: Desk) -> None:
    limits = {"max_pages": 100_000, "max_duration": "1m"}
    file = desk.write_contract({**CONTRACT, "source": "slow", "limits": limits, "politeness": {"min_delay": "1s"}})
    text = desk.run("sources", "check")
    assert text.splitlines()[-1] == "2 contracts valid: shop, slow"
    assert f"{file}: warning: " in text
    assert desk.run("sources", "check", desk.folder / "sources" / "shop.yaml").endswith("1 contract valid: shop\n")


def test_every_fault_of_every_file_is_printed_and_the_exit_is_2(desk: Desk) -> None:
    broken = desk.write_contract({**CONTRACT, "source": "broken", "politeness": {"min_dely": "1s"}, "owner": "nobody"})
    other = desk.write_contract({**CONTRACT, "source": "other", "accept": {"require": ["a[["]}})
    for arguments in ([], [broken, other]):
        text = desk.refused("sources", "check", *arguments)
        assert f"{broken}: 2 problems" in text
        assert "min_dely" in text
        assert f"{other}: 1 problem" in text
        assert "Traceback" not in text


def test_a_folder_without_contracts_is_said(desk: Desk) -> None:
    (desk.folder / "sources" / "shop.yaml").unlink()
    assert desk.run("sources", "check") == "no contracts; put one into a folder of CRAWL_SOURCES\n"
    assert desk.run("sources", "list").startswith("no sources yet")


def test_the_list_tells_new_active_changed_paused_and_orphaned_sources_apart(desk: Desk, database: Database) -> None:
    def state() -> str:
        return desk.run("sources", "list").splitlines()[1].split()[1]

    assert state() == "new"
    fill(database)
    assert state() == "active"
    desk.write_contract({**CONTRACT, "limits": {"max_pages": 7}})
    assert state() == "changed"
    desk.run("sources", "pause", "shop")
    assert state() == "paused"
    desk.run("sources", "resume", "shop")
    (desk.folder / "sources" / "shop.yaml").unlink()
    assert "no file" in desk.run("sources", "list")
    (listed,) = desk.json("sources", "list")
    assert (listed["source"], listed["has_file"], listed["paused_at"]) == ("shop", False, None)


def test_a_contract_is_in_force_since_its_version_was_first_used(desk: Desk, database: Database) -> None:
    filled = fill(database)
    with database.connection() as connection:
        connection.execute(sa.text("UPDATE contracts SET first_used_at = '2020-01-02T03:04:05Z'"))
    sync_source(database, LoadedContract(contract=filled.contract, file=desk.folder / "shop.yaml", text=""))
    assert [one["in_force_since"] for one in desk.json("sources", "list")] == ["2020-01-02T03:04:05.000000Z"]


def test_a_home_that_cannot_be_a_folder_is_refused_in_a_sentence(desk: Desk) -> None:
    desk.folder.joinpath("home").write_text("")
    embedded = {**desk.environment, "CRAWL_DATABASE_URL": ""}
    for arguments in (["status"], ["db", "url"]):
        result = CliRunner(env=embedded).invoke(main, arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "cannot be made a folder (File exists); choose another" in result.stderr


def test_a_pause_keeps_its_time_and_ends_once(desk: Desk, database: Database) -> None:
    fill(database)
    assert desk.run("sources", "pause", "shop") == "shop is paused\n"
    (since,) = {one["paused_at"] for one in desk.json("sources", "list")}
    assert desk.run("sources", "pause", "shop") == "shop was paused already\n"
    assert desk.json("status", "shop")["paused_at"] == since
    assert "paused" in desk.run("status")
    assert desk.run("sources", "resume", "shop") == "shop is resumed\n"
    assert desk.run("sources", "resume", "shop") == "shop was not paused\n"
    assert 'no source named "shap"' in desk.refused("sources", "pause", "shap")


def test_a_source_that_was_never_crawled_can_be_paused(desk: Desk, database: Database) -> None:
    assert desk.run("sources", "pause", "shop") == "shop is paused\n"
    with database.connection() as connection:
        found = connection.execute(sa.text("SELECT source, paused_at IS NOT NULL FROM sources")).all()
    assert [tuple(row) for row in found] == [("shop", True)]


def test_the_url_hides_its_password_unless_asked(desk: Desk) -> None:
    url = "postgresql://me:secret@db.example.com:5433/crawl"
    hidden = Desk(folder=desk.folder, database_url=url)
    assert hidden.run("db", "url") == "postgresql://me:***@db.example.com:5433/crawl\n"
    assert hidden.run("db", "url", "--show-password") == url + "\n"


def test_an_upgrade_may_be_repeated(desk: Desk, database: Database) -> None:
    first = desk.run("db", "upgrade")
    assert first == desk.run("db", "upgrade")
    assert first.startswith("the database has schema version ")


def test_a_database_without_the_schema_is_one_sentence(desk: Desk, empty_database_url: str) -> None:
    empty = Desk(folder=desk.folder, database_url=empty_database_url)
    sentence = empty.refused("status", exit_code=1)
    assert "run: crawl-pipeline db upgrade" in sentence
    assert "\n" not in sentence
    empty.run("db", "upgrade")
    assert empty.json("status", "shop")["state"] == "never_crawled"


def test_a_malformed_variable_is_one_sentence(desk: Desk) -> None:
    wrong = Desk(folder=desk.folder, database_url="mysql://x")
    assert wrong.refused("status").startswith("crawl-pipeline: CRAWL_DATABASE_URL is no Postgres URL")
