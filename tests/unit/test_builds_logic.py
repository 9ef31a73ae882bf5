"""The logic hash changes with the computation, and with nothing else."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

from headgate.builds.logic_hash import Project
from headgate.errors import InvalidDefinition
from headgate.model.jobspecs import Declaration, ParameterSpec
from tests.support.jobspecs import spec

FILES = {
    "jobs/__init__.py": "",
    "jobs/daily.py": """
        from lib.rules import clean
        from lib import shapes

        def daily(orders):
            from . import late
            return clean(orders)
        """,
    "jobs/late.py": "LATE = 1\n",
    "lib/__init__.py": "",
    "lib/rules.py": """
        import lib.deep

        def clean(df):
            return df.where("x > 1")
        """,
    "lib/deep.py": "DEEP = 1\n",
    "lib/shapes.py": "SHAPE = 1\n",
    "other.py": "UNRELATED = 1\n",
}


def project(root: Path, **changed: str) -> Path:
    """Write the files above, with some replaced: `lib_rules="…"` is `lib/rules.py`."""
    for path, text in FILES.items():
        text = changed.get(path.removesuffix(".py").replace("/", "_"), text)
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(textwrap.dedent(text))
    return root


def declaration(**declared: Any) -> Declaration:
    made = spec("s.daily", "s.orders", **declared).declaration
    return Declaration(**{**vars(made), "module": "jobs.daily", "file": "jobs/daily.py"})


def logic(root: Path, **declared: Any) -> str:
    return Project(root).hashes(declaration(**declared))[0]


@pytest.fixture
def before(tmp_path: Path) -> str:
    return logic(project(tmp_path / "before"))


@pytest.mark.parametrize(
    "changed",
    [
        {"lib_rules": "'Doc.'\nimport lib.deep\ndef clean(df):\n    return df.where('x > 1')\n"},
        {"lib_rules": "import lib.deep  # y\n\n\ndef clean( df ):\n\treturn df.where('x > 1',)"},
        {"lib_rules": "import lib.deep\ndef clean(df):\n  return df.where('x '\n  '> 1')\n"},
        {"lib_shapes": "SHAPE = \\\n 1\n"},
        {"other": "UNRELATED = 2\n"},
    ],
    ids=["docstring", "comment and layout", "joined string", "continued line", "unrelated module"],
)
def test_change_without_meaning_keeps_the_hash(
    tmp_path: Path, before: str, changed: dict[str, str]
) -> None:
    assert logic(project(tmp_path / "after", **changed)) == before


@pytest.mark.parametrize(
    "changed",
    [
        {"lib_rules": "import lib.deep\n\ndef clean(df):\n    return df.where('x > 2')\n"},
        {"lib_deep": "DEEP = 2\n"},
        {"lib_shapes": "SHAPE = 2\n"},
        {"jobs_late": "LATE = 2\n"},
        {"lib___init__": "import lib.shapes\n"},
        {"jobs___init__": "print()\n"},
    ],
    ids=["function", "indirect", "from package", "in function", "package", "own package"],
)
def test_change_of_anything_imported_changes_the_hash(
    tmp_path: Path, before: str, changed: dict[str, str]
) -> None:
    assert logic(project(tmp_path / "after", **changed)) != before


def test_project_in_another_directory_or_in_src_layout_has_the_same_hash(
    tmp_path: Path, before: str
) -> None:
    assert logic(project(tmp_path / "moved" / "far")) == before
    project(tmp_path / "layout" / "src")
    assert logic(tmp_path / "layout") == before


def test_data_files_parameters_and_conf_are_part_of_the_hash(tmp_path: Path, before: str) -> None:
    root = project(tmp_path / "after")
    (root / "rules.csv").write_text("1")
    with_data = logic(root, bundle_data=("*.csv",))
    (root / "rules.csv").write_text("2")
    day = ParameterSpec(name="day", kind="integer", default=1)
    hashes = {
        before,
        with_data,
        logic(root, bundle_data=("*.csv",)),
        logic(root, parameters=(day,)),
        logic(root, spark_conf={"spark.sql.ansi.enabled": "true"}),
    }
    assert len(hashes) == 5


def test_how_it_is_treated_is_not_part_of_the_hash(tmp_path: Path, before: str) -> None:
    root = project(tmp_path / "after")
    assert logic(root, fresh="never", allowed_run_seconds=5.0, allow_empty=True) == before


def test_bundle_data_that_names_nothing_is_an_error_at_the_transform(tmp_path: Path) -> None:
    with pytest.raises(InvalidDefinition, match=r"jobs/daily\.py:1: .* bundle_data 'no\.csv'"):
        logic(project(tmp_path), bundle_data=("no.csv",))


def test_locked_versions_count_and_comments_in_them_do_not(tmp_path: Path, before: str) -> None:
    root = project(tmp_path / "after")
    lock = root / "requirements.txt"
    lock.write_text("pandas==2.3.0\n")
    locked = logic(root)
    lock.write_text("# made by hand\npandas==2.3.0  # for reports\n\n")
    assert logic(root) == locked != before
    code = Project(root).hashes(declaration())[1]
    lock.write_text("pandas==2.3.1\n")
    assert logic(root) != locked
    assert Project(root).hashes(declaration())[1] == code
    shutil.move(lock, root / "uv.lock")
    assert logic(root) != before


def test_modules_reached_are_those_of_the_project_only(tmp_path: Path) -> None:
    daily = "import os, jobs.late\nfrom importlib import import_module\nimport_module('other')\n"
    found = Project(project(tmp_path, jobs_daily=daily)).reached_from("jobs.daily")
    assert found == ["jobs", "jobs.daily", "jobs.late", "other"]


def test_relative_imports_reach_up(tmp_path: Path) -> None:
    root = project(
        tmp_path, jobs_late="from .daily import daily\n", lib_rules="from . import deep\n"
    )
    assert "lib.deep" in Project(root).reached_from("jobs.late")


def test_module_that_python_cannot_read_counts_by_its_bytes(tmp_path: Path, before: str) -> None:
    broken = logic(project(tmp_path / "one", jobs_late="print 'old'\n"))
    other = logic(project(tmp_path / "two", jobs_late="print 'older'\n"))
    assert len({before, broken, other}) == 3


def test_import_cycle_ends(tmp_path: Path) -> None:
    root = project(tmp_path, jobs_late="import jobs.daily\n")
    assert Project(root).reached_from("jobs.late") == Project(root).reached_from("jobs.daily")


def test_reading_the_files_of_an_input_is_no_suspicion(tmp_path: Path) -> None:
    rules = """
        def clean(spark, files, other):
            home = files.filesystem().hadoop_path
            parts = [f"{home}/{n}.csv" for n in "ab"]
            spark.read.csv(parts)
            spark.read.parquet(files.filesystem().hadoop_path + "/c")
            spark.read.parquet(other)
        """
    found = Project(project(tmp_path, lib_rules=rules)).suspicions({"jobs.daily"})
    assert [s.line for s in found] == [7]


def test_lines_that_depend_on_time_chance_or_paths_are_listed(tmp_path: Path) -> None:
    rules = """
        from pyspark.sql import functions as F

        def clean(spark, df):
            spark.read.format("csv").load("/data")
            spark.read.option("a", 1).parquet("/data")
            df.write.format("csv")
            df.withColumn("at", F.current_timestamp()).withColumn("id", F.expr("uuid()"))
            random.seed(7), random.randint(1, 6), np.random.default_rng(7).normal()
            pd.read_csv("/data/a.csv"), pd.read_csv(raw.filesystem().open("a.csv"))
            return df.withColumn("r", F.rand()).join(df.read_me.load_all())
        """
    found = Project(project(tmp_path, lib_rules=rules)).suspicions({"jobs.daily"})
    assert [(s.file, s.line, s.what) for s in found] == [
        ("lib/rules.py", 5, "read.load() reads data that no Input declares"),
        ("lib/rules.py", 6, "read.parquet() reads data that no Input declares"),
        ("lib/rules.py", 8, "current_timestamp() depends on the time"),
        ("lib/rules.py", 8, "uuid() in SQL"),
        ("lib/rules.py", 9, "randint() depends on chance"),
        ("lib/rules.py", 10, "read_csv() reads data that no Input declares"),
        ("lib/rules.py", 11, "rand() depends on chance"),
    ]
