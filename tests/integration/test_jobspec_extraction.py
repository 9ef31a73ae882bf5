"""Extraction of JobSpecs from real Git repositories, in a real child process."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from headgate.builds.bundle import unpack_bundle
from headgate.builds.project import Discovery, discover, extract_declarations
from headgate.errors import (
    GitUnusable,
    InvalidDefinition,
    OutputContested,
    UserCodeFailed,
    UserCodeTimedOut,
)
from tests.support.repositories import Work, new_repository

DAILY = """
    from headgate.transforms import Input, Output, transform_df
    from lib.rules import keep

    @transform_df(Output("sales.daily"), orders=Input("sales.orders"))
    def daily(orders):
        return keep(orders)
    """


@pytest.fixture
def work(tmp_path: Path) -> Work:
    made = new_repository(tmp_path / "work")
    made.write(jobs__daily=DAILY, lib__rules="def keep(df):\n    return df\n")
    made.commit()
    return made


def by_output(found: Discovery) -> dict[str, str]:
    return {str(spec.outputs[0].dataset): spec.logic_hash for spec in found.jobspecs}


def test_every_transform_of_the_commit_becomes_a_jobspec(work: Work, tmp_path: Path) -> None:
    found = discover(work.repository)
    (spec,) = found.jobspecs
    assert spec.title == "jobs.daily.daily"
    assert (spec.declaration.file, spec.declaration.line) == ("jobs/daily.py", 5)
    assert (spec.source.branch, spec.source.clean) == ("master", True)
    assert spec.source.commit == work.git("rev-parse", "HEAD")
    tree = unpack_bundle(found.bundle.data, spec.bundle, tmp_path / "cache")
    assert (tree / "lib" / "rules.py").is_file()


def test_what_is_not_committed_is_refused_and_named(work: Work) -> None:
    work.write(lib__rules="def keep(df):\n    return df.limit(1)\n")
    with pytest.raises(GitUnusable, match=r"uncommitted changes: lib/rules\.py.*--allow-dirty"):
        discover(work.repository)


def test_changes_are_published_when_allowed_and_marked(work: Work) -> None:
    clean = discover(work.repository)
    work.write(lib__rules="def keep(df):\n    return df.limit(1)\n")
    dirty = discover(work.repository, allow_dirty=True)
    assert not dirty.source.clean
    assert by_output(dirty) != by_output(clean)
    assert discover(work.repository, allow_dirty=True).bundle == dirty.bundle


def test_edit_of_a_function_changes_only_those_that_import_it(work: Work) -> None:
    alone = DAILY.replace("from lib.rules import keep", "keep = list").replace("daily", "alone")
    work.write(jobs__alone=alone)
    work.commit()
    before = by_output(discover(work.repository))
    work.write(lib__rules="def keep(df):\n    return df.limit(1)\n")
    work.commit()
    after = by_output(discover(work.repository))
    assert after["sales.daily"] != before["sales.daily"]
    assert after["sales.alone"] == before["sales.alone"]


def test_source_layout_prints_and_shared_imports_are_no_obstacle(tmp_path: Path) -> None:
    work = new_repository(tmp_path / "work")
    work.write(src__pipe____init__="print('hello')\n", src__pipe__daily=DAILY)
    work.write(src__lib__rules="keep = list\n")
    work.write(src__pipe__all="from pipe.daily import daily  # headgate.transforms\n")
    work.commit()
    (spec,) = discover(work.repository).jobspecs
    assert spec.declaration.module == "pipe.daily"
    assert spec.declaration.file == "src/pipe/daily.py"


def test_transforms_of_a_factory_belong_to_the_module_that_keeps_them(tmp_path: Path) -> None:
    work = new_repository(tmp_path / "work")
    work.write(
        factory="""
        from headgate.transforms import Output, transform_df

        def make(name):
            @transform_df(Output(f"s.{name}"))
            def made():
                return name
            return made
        """,
        jobs="from factory import make  # headgate.transforms\nALL = [make('a'), make('b')]\n",
    )
    work.commit()
    found = discover(work.repository).jobspecs
    assert [spec.declaration.module for spec in found] == ["jobs", "jobs"]
    assert len({spec.logic_hash for spec in found}) == 2


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("import headgate.transforms\n\nimport no_such_module\n", 3, "No module named"),
        ("import headgate.transforms\ndef f(:\n", 2, "SyntaxError"),
        ("import headgate.transforms\nfrom lib.rules import gone\n", 2, "ImportError"),
        ("import headgate.transforms\nimport sys\nsys.exit(3)\n", 3, "SystemExit: 3"),
        ("import headgate.transforms\n\n\nassert False, 'why'\n", 4, "AssertionError: why"),
    ],
)
def test_module_that_cannot_be_imported_names_file_line_and_reason(
    work: Work, source: str, line: int, reason: str
) -> None:
    work.write(jobs__broken=source)
    work.commit()
    with pytest.raises(UserCodeFailed, match=reason) as caught:
        discover(work.repository)
    assert (caught.value.facts["file"], caught.value.facts["line"]) == ("jobs/broken.py", line)
    assert str(caught.value).startswith(f"jobs/broken.py:{line}: importing module jobs.broken")
    assert caught.value.facts["traceback"]


def test_wrong_declaration_names_the_projects_file(work: Work) -> None:
    work.write(jobs__daily=DAILY.replace("sales.daily", "daily"))
    work.commit()
    with pytest.raises(InvalidDefinition, match=r"^jobs/daily\.py:5: .*needs a namespace"):
        discover(work.repository)


def test_two_transforms_with_one_output_are_refused_with_both_places(work: Work) -> None:
    work.write(jobs__again=DAILY.replace("def daily", "def again"))
    work.commit()
    with pytest.raises(OutputContested) as caught:
        discover(work.repository)
    places = {caught.value.facts["first"], caught.value.facts["second"]}
    assert places == {"daily (jobs/daily.py:5)", "again (jobs/again.py:5)"}


def test_name_that_leads_out_of_the_project_is_refused(work: Work) -> None:
    work.write(json="import headgate.transforms\n")
    work.commit()
    with pytest.raises(UserCodeFailed, match=r"json\.py:1: .*outside the project; rename"):
        discover(work.repository)


def test_process_that_dies_without_an_answer_is_reported_with_its_last_words(work: Work) -> None:
    dying = "import headgate.transforms, os, sys\nsys.stderr.write('ouch')\nsys.stderr.flush()\n"
    work.write(jobs__dying=dying + "os._exit(9)\n")
    work.commit()
    with pytest.raises(
        UserCodeFailed, match="code 9 and without a result; its last line of output: ouch"
    ):
        discover(work.repository)


def test_import_that_hangs_is_stopped_with_what_it_started(work: Work) -> None:
    work.write(
        jobs__slow="""
        import headgate.transforms, subprocess, time
        subprocess.Popen(["sleep", "600"])
        time.sleep(600)
        """
    )
    work.commit()
    begun = time.monotonic()
    with pytest.raises(UserCodeTimedOut, match="took over 2 s"):
        discover(work.repository, timeout_seconds=2)
    assert time.monotonic() - begun < 300


def test_file_that_no_import_reaches_is_reported_not_lost(work: Work) -> None:
    work.write_file("to-do/x.py", "import headgate.transforms\n")
    work.commit()
    assert discover(work.repository).unreachable == ("to-do/x.py",)


def test_data_files_travel_in_the_bundle(work: Work, tmp_path: Path) -> None:
    daily = DAILY.replace("transform_df\n", "configure, transform_df\n").replace(
        "@transform_df", "@configure(bundle_data=['rules/*.csv'])\n    @transform_df"
    )
    work.write(jobs__daily=daily)
    work.write_file("rules/r.csv", "1,2\n")
    work.commit()
    bundle = discover(work.repository).bundle
    tree = unpack_bundle(bundle.data, bundle.digest, tmp_path / "cache")
    assert (tree / "rules" / "r.csv").read_text() == "1,2\n"


def test_repository_without_transforms_publishes_none(tmp_path: Path) -> None:
    work = new_repository(tmp_path / "work")
    work.commit()
    assert discover(work.repository).jobspecs == ()
    assert extract_declarations(work.root, []) == ()


def test_extraction_is_a_command_that_prints_one_document(work: Work) -> None:
    home = Path(sys.modules["headgate"].__path__[0]).parent
    command = [sys.executable, "-P", "-m", "headgate.builds.extract", str(work.root), "jobs.daily"]
    answer = subprocess.run(
        ["env", f"PYTHONPATH={home}", *command], capture_output=True, check=True, text=True
    )
    assert answer.stdout.startswith('{"transforms": [{"module": "jobs.daily"')
