"""Writes rows to topics: ``plan`` checks the columns, ``rows`` encodes, ``place`` and ``send`` pick queues and send,
``commit``, ``prepared`` and ``transactional`` make each row of a micro-batch visible exactly once.
"""
