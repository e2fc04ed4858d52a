"""Data pipelines described in a file: sources, steps, sinks. ``orbitmq pipeline`` runs them on Spark.

``spec`` (what a file may say), ``load`` (reads and checks it) and ``plan`` (what follows from it) need no Spark;
``session``, ``sources``, ``steps``, ``decode``, ``sinks`` and ``run`` carry it out.
"""
