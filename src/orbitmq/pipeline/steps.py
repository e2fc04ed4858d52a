"""The steps of a pipeline on Spark. Each step turns earlier relations into a new one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, assert_never

from orbitmq.pipeline import spec
from orbitmq.pipeline.decode import ERROR_COLUMN, apply_decode
from orbitmq.pipeline.failures import explained
from orbitmq.pipeline.plan import Plan, dead_letter_name, rejected_name
from orbitmq.pipeline.queries import require_query
from orbitmq.spark.errors import PipelineError, SpecError, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

__all__ = ["FAILED_COLUMN", "apply_step", "import_function", "reject_properties"]

FAILED_COLUMN: Final = "failed_rules"
_ORIGIN: Final = ("topic", "broker", "queue_id", "queue_offset", "msg_id")


def apply_step(
    session: SparkSession,
    plan: Plan,
    step: spec.Step,
    frames: Mapping[str, DataFrame],
    path: str,
    observation: Observation | str | None = None,
) -> dict[str, DataFrame]:
    """Returns the relations that a step creates, by name. A quality step counts rows with ``observation``.

    Raises ``SpecError`` with the path of the field for anything that Spark rejects.
    """
    inputs = next(relation.inputs for relation in plan.relations if relation.name == step.name)
    match step:
        case spec.SqlStep():
            query = require_query(session, step.query, f"{path}.query")
            with explained(f"{path}.query"):
                made = session.sql(query)
        case spec.PythonStep():
            made = _call(plan, step, [frames[name] for name in inputs], path)
        case spec.DecodeStep():
            with explained(path):
                made = apply_decode(frames[inputs[0]], step, plan, path)
        case spec.WatermarkStep():
            _check_columns(frames[inputs[0]], [step.column], f"{path}.column")
            with explained(path):
                made = frames[inputs[0]].withWatermark(step.column, step.delay)
        case spec.DeduplicateStep():
            made = _deduplicated(frames[inputs[0]], step, path)
        case spec.QualityStep():
            return _checked(frames[inputs[0]], plan, step, path, observation)
        case _:
            assert_never(step)
    return {step.name: made}


def _check_columns(frame: DataFrame, columns: list[str], path: str) -> None:
    for column in columns:
        if column not in frame.columns:
            raise SpecError(path, f"there is no column {column!r}{did_you_mean(column, frame.columns)}")


def import_function(plan: Plan, step: spec.PythonStep, path: str) -> Callable[..., Any]:
    """Returns the function of a Python step. The directory of the pipeline file is searched first."""
    module_name, _, name = step.function.partition(":")
    directory = str(plan.directory)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the author's module may raise anything
        raise SpecError(
            f"{path}.function", f"cannot import {module_name}: {type(error).__name__}: {error}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise SpecError(
            f"{path}.function", f"{module_name} has no function {name!r}{did_you_mean(name, known)}"
        )
    chosen: Callable[..., Any] = function
    return chosen


def _call(plan: Plan, step: spec.PythonStep, frames: list[DataFrame], path: str) -> DataFrame:
    from pyspark import cloudpickle
    from pyspark.sql import DataFrame

    function = import_function(plan, step, path)
    # The author's module may be missing on the executors, so it is pickled with its functions.
    register: Callable[[Any], None] = cloudpickle.register_pickle_by_value
    register(sys.modules[function.__module__])
    with explained(f"{path}.function"):
        try:
            made = function(*frames, **step.arguments)
        except PipelineError:
            raise
        except (TypeError, ValueError, KeyError, AttributeError, LookupError, ArithmeticError) as error:
            raise SpecError(
                f"{path}.function", f"{step.function} raised {type(error).__name__}: {error}"
            ) from error
    if not isinstance(made, DataFrame):
        raise SpecError(
            f"{path}.function", f"{step.function} returned {type(made).__name__}, not a DataFrame"
        )
    return made


def _deduplicated(frame: DataFrame, step: spec.DeduplicateStep, path: str) -> DataFrame:
    _check_columns(frame, step.by, f"{path}.by")
    if not frame.isStreaming:
        return frame.dropDuplicates(step.by)
    _check_columns(frame, [step.column], f"{path}.column")
    with explained(path):
        return frame.withWatermark(step.column, step.within).dropDuplicatesWithinWatermark(step.by)


def _checked(
    frame: DataFrame, plan: Plan, step: spec.QualityStep, path: str, observation: Observation | str | None
) -> dict[str, DataFrame]:
    from pyspark.sql import functions as f

    if FAILED_COLUMN in frame.columns:
        raise SpecError(
            path, f"there is a column {FAILED_COLUMN!r} already: an earlier step checked these rows"
        )
    broken: dict[str, Column] = {}
    for name, rule in step.rules.items():
        with explained(f"{path}.rules.{name}"):
            condition = f.expr(rule)
            found = frame.select(condition.alias("rule")).schema[0].dataType.simpleString()
            if found != "boolean":
                raise SpecError(f"{path}.rules.{name}", f"the rule gives {found}, not true or false")
            broken[name] = ~f.coalesce(condition, f.lit(False))
    names = [f.when(condition, f.lit(name)) for name, condition in broken.items()]
    checked = frame.withColumn(FAILED_COLUMN, f.filter(f.array(*names), lambda one: one.isNotNull()))
    if observation is not None:
        counts = [
            f.coalesce(f.sum(f.array_contains(FAILED_COLUMN, name).cast("bigint")), f.lit(0)).alias(name)
            for name in broken
        ]
        rejected = f.coalesce(f.sum((f.size(FAILED_COLUMN) > 0).cast("bigint")), f.lit(0))
        checked = checked.observe(
            observation, f.count(f.lit(1)).alias("_checked"), rejected.alias("_rejected"), *counts
        )
    passed = checked.where(f.size(FAILED_COLUMN) == 0).drop(FAILED_COLUMN)
    refused = checked.where(f.size(FAILED_COLUMN) > 0)
    made = {step.name: passed, rejected_name(step.name): refused}
    if step.dead_letter is not None:
        made[dead_letter_name(step.name)] = _letters(refused, plan, step)
    return made


def reject_properties(frame: DataFrame, plan: Plan, step: spec.QualityStep) -> dict[str, Column]:
    """Returns message properties that say why and where a row was rejected, and from which message it came. The names
    have no dots, so that SQL92 filters can use them."""
    from pyspark.sql import functions as f

    columns = frame.columns
    properties = {
        "reject_rules": f.array_join(FAILED_COLUMN, ","),
        "reject_pipeline": f.lit(plan.pipeline.name),
        "reject_step": f.lit(step.name),
    }
    if ERROR_COLUMN in columns:
        # 0x01 and 0x02 separate properties, and an error may quote bytes of the body.
        properties["reject_error"] = f.regexp_replace(ERROR_COLUMN, "[\\x00-\\x1f]", " ")
    for name in _ORIGIN:
        if name in columns:
            properties[f"reject_{name}"] = f.col(name).cast("string")
    return properties


def _letters(refused: DataFrame, plan: Plan, step: spec.QualityStep) -> DataFrame:
    """Returns rejected rows as messages with the original body. If a step has dropped the body, the row as JSON
    replaces it."""
    from pyspark.sql import functions as f

    types = dict(refused.dtypes)
    body = (
        f.col("body").cast("binary")
        if types.get("body") in ("binary", "string")
        else f.to_json(f.struct(*types)).cast("binary")
    )
    reasons = reject_properties(refused, plan, step)
    entries = f.map_from_arrays(f.array(*[f.lit(name) for name in reasons]), f.array(*reasons.values()))
    said = f.map_filter(entries, lambda _, value: value.isNotNull())
    if types.get("properties") == "map<string,string>":
        own = f.map_filter("properties", lambda name, _: ~name.isin(*reasons))
        said = f.when(f.col("properties").isNull(), said).otherwise(f.map_concat(own, said))
    chosen = [body.alias("body"), said.alias("properties")]
    chosen += [f.col(name) for name in ("keys", "tags", "msg_id") if types.get(name) == "string"]
    return refused.select(*chosen)
