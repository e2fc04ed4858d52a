"""An Airflow DAG around a pipeline file: test it, process the available messages, and wait for a stream to catch up.

Exit code 1 (failed during the run) is retried; 2 (cannot start: file, server, package) fails without a retry.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta

from airflow import DAG
from airflow.exceptions import AirflowFailException
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.providers.standard.sensors.python import PythonSensor

PIPELINE = os.environ.get("ORDERS_PIPELINE", "orders.yaml")
LAG_MAX = 1000
CANNOT_START = 2


def run_pipeline(parent: str) -> None:
    """Runs the pipeline; `parent` links its OpenLineage events to this task."""
    command = [
        "env",
        f"OPENLINEAGE_PARENT_ID={parent}",
        "orbitmq",
        "pipeline",
        "run",
        PIPELINE,
        "--once",
        "--quiet",
    ]
    done = subprocess.run(command, check=False)
    if done.returncode == CANNOT_START:
        raise AirflowFailException("the pipeline cannot start")
    if done.returncode != 0:
        raise RuntimeError("the pipeline failed")


def caught_up() -> bool:
    """Returns whether the pipeline has not failed and is at most LAG_MAX messages behind."""
    command = ["orbitmq", "pipeline", "status", PIPELINE, "--json"]
    status = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if status["state"] == "failed":
        raise AirflowFailException(status["reason"])
    return all((query["behind"] or 0) <= LAG_MAX for query in status["queries"])


with DAG("orders", schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False) as dag:
    test = BashOperator(task_id="test", bash_command=f"orbitmq pipeline test {PIPELINE}", retries=0)
    run = PythonOperator(
        task_id="run",
        python_callable=run_pipeline,
        op_args=["{{ macros.OpenLineageProviderPlugin.lineage_parent_id(task_instance) }}"],
        retries=3,
        retry_delay=timedelta(minutes=1),
    )
    wait = PythonSensor(task_id="wait", python_callable=caught_up, poke_interval=60, mode="reschedule")
    test >> run >> wait
