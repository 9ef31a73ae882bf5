"""Declarations of transforms, and errors with file and line for invalid ones."""

from __future__ import annotations

import datetime
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

import headgate
from headgate.errors import InvalidDefinition
from headgate.model.jobspecs import declaration_from_json
from headgate.transforms import (
    BooleanParam,
    Check,
    FloatParam,
    Input,
    IntegerParam,
    Output,
    Pipeline,
    StringParam,
    Transform,
    configure,
    incremental,
    transform,
    transform_df,
)
from headgate.transforms import expectations as E  # noqa: N812  (as users write it)
from headgate.transforms.discovery import describe, load_transform, transforms_of

PREAMBLE = "from headgate.transforms import *\nfrom headgate.transforms import expectations as E\n"


def defined(source: str, name: str = "pipeline") -> ModuleType:
    """Execute source as a module with its own file name; its first line is line 3."""
    module = ModuleType(name)
    code = compile(PREAMBLE + textwrap.dedent(source), "/project/pipeline.py", "exec")
    exec(code, vars(module))
    return module


def test_transform_keeps_what_it_was_declared_with() -> None:
    @configure(fresh="never", allowed_run_duration=datetime.timedelta(minutes=5))
    @incremental(semantic_version=2, snapshot_inputs=["ref"])
    @transform(
        orders=Input("sales.orders"),
        ref=Input("sales.ref", branch="master"),
        day=StringParam("today"),
        clean=Output("sales.clean"),
        bad=Output("sales.bad", kind="files"),
    )
    def split(ctx, orders, ref, day, clean, bad):  # type: ignore[no-untyped-def]
        pass

    assert isinstance(split, Transform)
    assert list(split.inputs) == ["orders", "ref"]
    assert [str(o.dataset) for o in split.outputs.values()] == ["sales.clean", "sales.bad"]
    assert split.options.fresh == "never"
    assert split.options.allowed_run_seconds == 300
    assert split.incremental is not None
    assert split.incremental.snapshot_inputs == ("ref",)
    assert split.location.file == __file__


def test_declaration_survives_json() -> None:
    positive = Check(E.col("amount").gt(0), "positive", on_error="WARN")

    @configure(bundle_data=["rules/*.csv"], spark_conf={"spark.sql.ansi.enabled": True})
    @transform_df(
        Output("s.out", checks=positive, partition_cols=["days(at)"]),
        a=Input("s.a", transaction="t-1"),
        n=IntegerParam(3),
    )
    def made(a, n):  # type: ignore[no-untyped-def]
        return a

    declared = describe(made, module="pipeline", file="pipeline.py")
    assert declaration_from_json(declared.to_json()) == declared
    assert declared.spark_conf == {"spark.sql.ansi.enabled": "true"}
    assert declared.outputs[0].checks[0].expectation["op"] == "gt"


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("Input('orders')", 3, "needs a namespace"),
        ("x = 1\nOutput('s.o', kind='view')", 4, "'table' or 'files'"),
        ("Check(E.col('x'), 'x')", 3, "needs an expectation"),
        ("Check(E.true(), 'x', on_error='SHOUT')", 3, "'FAIL' or 'WARN'"),
        ("IntegerParam(True)", 3, "True is not a valid integer parameter"),
        ("StringParam(1)", 3, "1 is not a valid string parameter"),
        ("E.col('x').gt(object)", 3, "cannot be compared"),
        ("E.all(E.col('x'))", 3, "is not an expectation"),
        ("transform_df(Input('s.a'))", 3, "needs an Output first"),
        ("@transform(a=Input('s.a'))\ndef f(a): ...", 3, "f has no Output"),
        ("@transform(o=Output('s.o'), a=3)\ndef f(a, o): ...", 3, "a is 3, not an Input"),
        ("@transform_df(Output('s.o'), a=Input('s.a'))\ndef f(b): ...", 3, "no parameter 'a'"),
        ("@transform_df(Output('s.o'))\ndef f(b): ...", 3, "'b' of f is not declared"),
        ("@transform_df(Output('s.o'), a=Input('s.o'))\ndef f(a): ...", 3, "its own output s.o"),
        ("@transform(a=Output('s.o'), b=Output('s.o'))\ndef f(a, b): ...", 3, "s.o twice"),
        (
            "@transform_df(Output('s.o'), a=Input('s.a'), b=Input('s.a', 'old'))\ndef f(a, b): ...",
            3,
            "reads s.a at two versions",
        ),
        ("transform_pandas(Input('s.a'))", 3, "transform_pandas needs an Output first"),
        ("Pipeline(3)", 3, "made of transforms"),
        ("@transform(ctx=Output('s.o'))\ndef f(ctx): ...", 3, "'ctx' is reserved for the context"),
        ("@transform_df(Output('s.o'))\n@incremental()\ndef f(): ...", 4, "put @incremental above"),
        ("@transform_df(Output('s.o'))\n@configure()\ndef f(): ...", 4, "put @configure above"),
        ("incremental(2)", 3, "require_incremental must be True or False, not 2"),
        ("incremental(print)", 3, "with parentheses"),
        ("incremental(semantic_version='2')", 3, "semantic_version must be an integer"),
        ("configure(fresh='always')", 3, "'inputs', 'never'"),
        ("configure(bundle_data='rules.csv')", 3, r"write \['rules.csv'\]"),
        ("configure(bundle_data=['../x'])", 3, "must be in the project"),
        ("configure(allowed_run_duration=0)", 3, "more than 0 seconds"),
        ("transform_df(Output('s.o'))(3)", 3, "decorates a function"),
        (
            "c = Check(E.true(), 'x')\n@transform_df(Output('s.o', checks=[c, c]))\ndef f(): ...",
            4,
            "two checks named 'x'",
        ),
        (
            "@incremental(snapshot_inputs=['b'])\n@transform_df(Output('s.o'))\ndef f(): ...",
            3,
            "'b', which is not an input",
        ),
    ],
)
def test_wrong_declaration_names_file_line_and_reason(source: str, line: int, reason: str) -> None:
    with pytest.raises(InvalidDefinition, match=reason) as caught:
        defined(source)
    assert caught.value.facts["file"] == "/project/pipeline.py"
    assert caught.value.facts["line"] == line
    assert str(caught.value).startswith(f"/project/pipeline.py:{line}: ")


def test_function_that_takes_anything_needs_no_named_parameters() -> None:
    found = defined("@transform(a=Input('s.a'), o=Output('s.o'))\ndef f(**ios): ...")
    assert isinstance(found.f, Transform)


def test_wrapped_function_is_known_by_the_line_that_the_user_wrote() -> None:
    source = """
        import functools

        def timed(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return function(*args, **kwargs)
            return wrapper

        @transform_df(Output("s.o"), a=Input("s.a"))
        @timed
        def f(a): ...
        """
    assert defined(source).f.location.line == 12


def test_parameters_bind_values_of_their_type_only() -> None:
    assert FloatParam(1).value == 1.0
    assert BooleanParam(False).bind(True).value is True
    assert StringParam("a").bind("b").default == "a"
    with pytest.raises(InvalidDefinition, match="1 is not a valid boolean parameter"):
        BooleanParam(False).bind(1)


def test_module_offers_its_transforms_also_in_collections_once_each() -> None:
    module = defined(
        """
        def make(name):
            @transform_df(Output(f"s.{name}"))
            def made(): ...
            return made

        one = make("one")
        same = one
        many = [make("two"), make("three")]
        named = {"four": make("four"), "one": one}
        loose = {one}
        """
    )
    found = [str(next(iter(t.datasets_written))) for t in transforms_of(module)]
    assert sorted(found) == ["s.four", "s.one", "s.three", "s.two"]
    assert load_transform(module, one := module.many[1].datasets_written).datasets_written == one


def test_importing_the_declarations_loads_no_heavy_library() -> None:
    home = Path(headgate.__path__[0]).parent
    script = (
        f"import sys; sys.path.append({str(home)!r}); import headgate.transforms; "
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", script]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {module.partition(".")[0] for module in answer.stdout.split()}
    assert not loaded & {"pyspark", "pandas", "pyarrow", "sqlalchemy", "pydantic", "orjson"}
    rooms = {m.split(".")[1] for m in answer.stdout.split() if m.startswith("headgate.")}
    assert rooms == {"transforms", "model", "errors"}


def test_place_of_this_file_is_known() -> None:
    with pytest.raises(InvalidDefinition) as caught:
        Input("nonamespace")
    assert Path(caught.value.facts["file"]).name == Path(__file__).name


def test_pipeline_offers_its_transforms_and_refuses_two_makers() -> None:
    module = defined(
        """
        @transform_df(Output("s.a"))
        def a(): ...

        @transform_df(Output("s.a"))
        def again(): ...

        def hidden():
            return transform_df(Output("s.b"))(lambda: None)

        pipeline = Pipeline(hidden())
        """
    )
    assert len(transforms_of(module)) == 3
    pipeline = Pipeline()
    pipeline.add_transforms(module.a, module.a)
    assert pipeline.transforms == (module.a,)
    with pytest.raises(InvalidDefinition, match=r"a and again both write s\.a"):
        pipeline.discover_transforms(module)
