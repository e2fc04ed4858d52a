"""Decides before anything runs whether a ``sql`` step is a query, and whether a relation can be streamed.

``SparkSession.sql`` executes a command (INSERT, DROP, SET, CALL, a script) as soon as it is called. So the text is
first parsed in a position where Spark's grammar accepts only a query, which is the body of a common table expression
within a SELECT. Text that can be parsed there is either a query, or has unbalanced parentheses and is not a statement
on its own. A list of forbidden statements would have to grow with every release of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orbitmq.pipeline.batches import is_connect
from orbitmq.pipeline.failures import explained
from orbitmq.spark.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["require_query", "require_streamable", "streaming_rows"]

_ONLY_A_QUERY: Final = "SELECT * FROM (WITH _step AS (\n{}\n) SELECT * FROM _step)"


def require_query(session: SparkSession, text: str, path: str) -> str:
    """Returns the text without a final semicolon. Raises ``SpecError`` unless the text is a single query. Executes
    nothing."""
    from pyspark.errors import AnalysisException, ParseException

    text = text.rstrip().rstrip(";")
    try:
        _parse(session, _ONLY_A_QUERY.format(text))
    except ParseException as error:
        if not is_connect(session):
            with explained(path):
                _parse(session, text)  # a syntax error is reported with its own line numbers
        raise SpecError(
            path,
            "must be a query (SELECT, WITH, VALUES, FROM or TABLE): other statements are not executed; sinks write",
        ) from error
    except AnalysisException:
        pass  # it is a query, but a Connect server resolves names, too; its own error is clearer
    return text


def _parse(session: SparkSession, text: str) -> None:
    if is_connect(session):
        session.sql(text)  # parses on the server without executing the SELECT
    else:
        _internal(session).sessionState().sqlParser().parsePlan(text)


def _internal(session: SparkSession) -> Any:
    return session._jsparkSession


def streaming_rows(session: SparkSession, columns: str) -> DataFrame:
    """Returns a stream with these columns, given as in CREATE TABLE. It serves for analysis and is never started."""
    schema = session.createDataFrame([], columns).schema
    rows = session.readStream.format("rate").load()
    return rows.selectExpr(
        *(f"CAST(NULL AS {one.dataType.simpleString()}) AS `{one.name}`" for one in schema)
    )


def require_streamable(frame: DataFrame, output_mode: str) -> None:
    """Raises Spark's error if Spark would reject a streaming query over this relation when it starts."""
    session = frame.sparkSession
    classes: Any = session.sparkContext._jvm
    mode = getattr(classes.org.apache.spark.sql.streaming.OutputMode, output_mode.capitalize())()
    analysed = frame._jdf.queryExecution().analyzed()
    classes.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
        analysed, mode
    )
