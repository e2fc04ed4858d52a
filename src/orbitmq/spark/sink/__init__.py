"""Writes rows to topics. ``plan`` checks the columns, ``rows`` encodes rows, and ``place`` and ``send`` pick queues
and send. ``commit``, ``prepared`` and ``transactional`` make each row of a micro-batch visible exactly once."""
