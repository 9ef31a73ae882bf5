"""Calls of a transform's function, in a job and in a unit test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from headgate.errors import Invalid, NothingWritten, UserCodeFailed
from headgate.transforms import (
    Input,
    IntegerParam,
    Output,
    Transform,
    TransformContext,
    TransformInput,
    TransformOutput,
    configure,
    incremental,
    transform,
    transform_df,
    transform_pandas,
)
from headgate.transforms.invocation import Outcome, run_transform
from headgate.transforms.runtime import ReadMode, WriteMode, WriteOptions


@dataclass
class Frame:
    """Methods of a DataFrame that the caller uses."""

    rows: list[int]
    schema: str = "rows int"
    sparkSession: str = "the session"  # noqa: N815  (Spark's own spelling)

    def limit(self, count: int) -> Frame:
        return Frame(self.rows[:count])

    def unionByName(self, other: Frame) -> Frame:  # noqa: N802  (Spark's own spelling)
        return Frame([*self.rows, *other.rows])


@dataclass
class Written:
    frames: list[tuple[Frame, WriteOptions]] = field(default_factory=list)

    def write(self, frame: Frame, options: WriteOptions) -> None:
        self.frames.append((frame, options))


@transform_df(Output("s.out", partition_cols=["day"]), src=Input("s.src"), n=IntegerParam(1))
def add(ctx: Any, src: Any, n: Any) -> Any:
    return Frame([row + n.value for row in src.rows], sparkSession=ctx.spark_session)


@transform(src=Input("s.src"), small=Output("s.small"), big=Output("s.big"))
def split(src: Any, small: Any, big: Any) -> None:
    rows = src.dataframe().rows
    small.write_dataframe(Frame([r for r in rows if r < 10]), partition_cols=["x"])
    if max(rows) >= 10:
        big.set_mode("append")
        big.write_dataframe(Frame([r for r in rows if r >= 10]))


def run(
    made: Transform, frame: Frame, **parameters: Any
) -> tuple[Outcome, dict[str, Written], TransformContext]:
    written = {name: Written() for name in made.outputs}
    ctx = TransformContext(spark_session="job session", parameters=parameters)
    outputs = {
        name: TransformOutput(
            name,
            written[name].write,
            dataset=output.dataset,
            options=WriteOptions(partition_cols=output.partition_cols),
        )
        for name, output in made.outputs.items()
    }
    inputs = {name: TransformInput(name, lambda _mode: frame) for name in made.inputs}
    return run_transform(made, inputs, outputs, ctx), written, ctx


def test_transform_df_writes_what_the_function_returns() -> None:
    outcome, written, _ = run(add, Frame([1, 2]), n=5)
    assert outcome == Outcome(written=("output",), replaced=("output",), aborted=False)
    ((frame, options),) = written["output"].frames
    assert (frame.rows, frame.sparkSession) == ([6, 7], "job session")
    assert options == WriteOptions(partition_cols=("day",))


def test_transform_writes_each_output_itself() -> None:
    outcome, written, _ = run(split, Frame([1, 20]))
    assert outcome.written == ("small", "big")
    assert written["small"].frames[0][1].partition_cols == ("x",)
    assert written["big"].frames[0][1].mode is WriteMode.APPEND


def test_output_left_unwritten_fails_and_names_the_dataset() -> None:
    with pytest.raises(NothingWritten, match=r"without writing s\.big") as failed:
        run(split, Frame([1]))
    assert failed.value.facts["line"] == split.location.line


def test_function_that_should_return_and_does_not_is_told_to_return() -> None:
    @transform_df(Output("s.out"), src=Input("s.src"))
    def forgetful(src: Any) -> None:
        assert src.rows

    with pytest.raises(NothingWritten, match=r"returned None: end it with `return`"):
        run(forgetful, Frame([1]))


def test_output_left_unwritten_is_allowed_when_declared() -> None:
    outcome, _, _ = run(configure(allow_empty=True)(split), Frame([1]))
    assert outcome == Outcome(written=("small",), replaced=("small",), aborted=False)


def test_aborted_job_publishes_nothing_and_is_no_error() -> None:
    @transform_df(Output("s.out"))
    def nothing(ctx: Any) -> None:
        ctx.abort_job()

    outcome, written, _ = run(nothing, Frame([]))
    assert outcome == Outcome(written=(), aborted=True)
    assert written["output"].frames == []


def test_error_of_the_user_keeps_its_traceback_and_line() -> None:
    @transform_df(Output("s.out"), src=Input("s.src"))
    def broken(src: Any) -> Any:
        return 1 / len(src.rows)

    with pytest.raises(UserCodeFailed) as caught:
        run(broken, Frame([]))
    assert caught.value.facts["file"] == __file__
    assert caught.value.facts["line"] == broken.function.__code__.co_firstlineno + 2
    assert "ZeroDivisionError: division by zero" in str(caught.value)
    assert "return 1 / len(src.rows)" in caught.value.facts["traceback"]


def test_result_that_is_no_dataframe_is_the_users_error() -> None:
    @transform_df(Output("s.out"))
    def wrong() -> Any:
        return [1]

    with pytest.raises(UserCodeFailed, match="returned list; it must return a DataFrame"):
        run(wrong, Frame([]))


def test_call_in_a_test_takes_dataframes_in_the_functions_order() -> None:
    assert add(src=Frame([1])).rows == [2]
    assert add.compute(src=Frame([1]), n=10).rows == [11]
    assert add(src=Frame([1])).sparkSession == "the session"


def test_call_in_a_test_returns_what_was_written_by_output() -> None:
    assert {k: v.rows for k, v in split(Frame([1, 20])).items()} == {"small": [1], "big": [20]}


def test_call_in_a_test_passes_own_outputs_as_they_are() -> None:
    kept = Written()
    written = split(Frame([1, 20]), big=TransformOutput("big", kept.write))
    assert list(written) == ["small"]
    assert kept.frames[0][0].rows == [20]


def test_input_reads_in_the_mode_asked_for() -> None:
    asked: list[ReadMode] = []
    given = TransformInput("src", asked.append, default_mode=ReadMode.ADDED)
    given.dataframe()
    given.dataframe("previous")
    assert asked == [ReadMode.ADDED, ReadMode.PREVIOUS]
    with pytest.raises(
        Invalid, match="'newest' is not a mode; use one of added, previous, current"
    ):
        given.dataframe("newest")


def test_table_has_no_files_and_says_what_to_do() -> None:
    with pytest.raises(Invalid, match=r"write it with out\.write_dataframe"):
        TransformOutput("out", lambda _df, _options: None).filesystem()
    with pytest.raises(Invalid, match=r"read it with src\.dataframe"):
        TransformInput("src", lambda _mode: None).filesystem()


@dataclass
class PandasFrame:
    rows: list[int]
    iloc: str = "by position"


@transform_pandas(Output("s.out"), src=Input("s.src"))
def doubled(src: Any) -> Any:
    return PandasFrame([row * 2 for row in src.rows]) if src.rows else src.rows


def run_pandas(rows: list[int]) -> list[Any]:
    """Return the rows of the output, after a conversion to pandas and back."""
    frame = Frame(rows)
    frame.toPandas = lambda: PandasFrame(rows)  # type: ignore[attr-defined]
    written = Written()
    run_transform(
        doubled,
        {"src": TransformInput("src", lambda _mode: frame)},
        {
            "output": TransformOutput(
                "output", written.write, from_pandas=lambda made: Frame(made.rows)
            )
        },
        TransformContext(),
    )
    return [frame.rows for frame, _ in written.frames]


def test_transform_pandas_gets_and_returns_pandas() -> None:
    assert run_pandas([1, 2]) == [[2, 4]]
    assert doubled(PandasFrame([3])) == PandasFrame([6])
    with pytest.raises(UserCodeFailed, match="returned list; it must return a pandas DataFrame"):
        run_pandas([])


@incremental()
@transform(src=Input("s.src"), out=Output("s.out"))
def seen(ctx: Any, src: Any, out: Any) -> None:
    known = src.dataframe("previous").rows
    held = out.dataframe("previous").rows if ctx.is_incremental else []
    out.write_dataframe(Frame([len(known), len(held), *src.dataframe().rows]))
    out.write_dataframe(src.dataframe("current"))


def test_call_with_added_rows_is_an_incremental_one() -> None:
    given = {"added": Frame([3]), "previous": Frame([1, 2])}
    assert seen(src=given, out=Frame([9])) == {"out": Frame([2, 1, 3, 1, 2, 3])}
    assert add(src={"added": Frame([3])}).rows == [4]


def test_call_with_one_frame_is_a_full_one_and_later_writes_replace() -> None:
    assert seen(src=Frame([1, 2])) == {"out": Frame([1, 2])}


def test_call_with_an_unknown_mode_or_an_output_that_held_nothing_is_refused() -> None:
    with pytest.raises(Invalid, match=r"give \{'added': …\}"):
        seen(src={"new": Frame([1])}, out=Frame([]))
    with pytest.raises(Invalid, match="out has no previous content"):
        seen(src={"added": Frame([1])})
