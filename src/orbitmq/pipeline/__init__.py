"""Data pipelines described in a file, with sources, steps and sinks. ``orbitmq pipeline`` runs them on Spark.

``spec`` (the file format), ``load`` (reads and checks a file) and ``plan`` (derives relations and queries) need no
Spark. ``session``, ``sources``, ``steps``, ``decode``, ``sinks`` and ``run`` execute the plan.
"""
