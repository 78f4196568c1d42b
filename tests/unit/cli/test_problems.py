from __future__ import annotations

import pytest

from headrace.cli.problems import problem_of
from headrace.errors import BindError, HeadraceError, InputError, Span

# What a failing UDF looks like from the driver: the worker's traceback inside Spark's message.
IN_A_WORKER = """Job aborted: Task 0 in stage 3.0 failed 1 times: org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "task.py", line 55, in push
    raise MetricOverflow(name, type_name)
headrace.errors.MetricOverflow: metric spent: the exact result does not fit int64; cast the argument to a wider type
second line of the message

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Driver stacktrace:
"""


class SparkError(Exception):
    """Stands for what PySpark raises."""


def test_our_own_errors_are_told_as_they_are() -> None:
    error = BindError("there is no column amonut", "SELECT sum(amonut)", Span(1, 12, 6), "did you mean amount?")
    problem = problem_of(error)
    assert problem.exit_code == 2
    assert problem.message == (
        "line 1, column 12: there is no column amonut\n"
        "  SELECT sum(amonut)\n"
        "             ^^^^^^\n"
        "hint: did you mean amount?"
    )


@pytest.mark.parametrize("error", [HeadraceError("a"), InputError("b")])
def test_every_error_of_the_tree_exits_with_2(error: HeadraceError) -> None:
    assert problem_of(error).exit_code == 2


def test_an_error_of_ours_is_found_inside_the_one_that_spark_wraps_around_it() -> None:
    problem = problem_of(SparkError(IN_A_WORKER))
    assert problem.exit_code == 2
    assert problem.message == (
        "metric spent: the exact result does not fit int64; cast the argument to a wider type\n"
        "second line of the message"
    )


def test_the_last_of_several_wrapped_errors_is_the_cause() -> None:
    text = "headrace.errors.InputError: first\n\nDuring handling …\n\nheadrace.errors.MeasureError: second\n"
    assert problem_of(SparkError(text)).message == "second"


def test_files_that_spark_cannot_read_are_the_users_to_mend() -> None:
    text = "An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] \
Encountered error while reading file x.parquet. SQLSTATE: KD001\n\tat org.apache.spark.Errors(E.scala:1)"
    problem = problem_of(SparkError(text))
    assert problem.exit_code == 2
    assert problem.message == "Spark: Encountered error while reading file x.parquet."


def test_what_we_did_not_expect_is_short_and_says_how_to_see_more() -> None:
    text = "boom\n\tat a.b.C(D.scala:1)\nCaused by: java.lang.OutOfMemoryError: Java heap space\n\tat e.f.G(H.scala:2)"
    problem = problem_of(SparkError(text))
    assert problem.exit_code == 1
    assert problem.message == (
        "something unexpected happened: SparkError: java.lang.OutOfMemoryError: Java heap space\n"
        "run the same command with --debug to see the whole story"
    )
    assert problem_of(ZeroDivisionError()).message.startswith("something unexpected happened: ZeroDivisionError\n")


def test_files_of_the_system_are_named() -> None:
    problem = problem_of(PermissionError(13, "Permission denied", "/secret"))
    assert (problem.message, problem.exit_code) == ("/secret: permission denied", 2)


def test_an_interrupt_has_the_exit_code_of_the_shell() -> None:
    assert problem_of(KeyboardInterrupt()).exit_code == 130
