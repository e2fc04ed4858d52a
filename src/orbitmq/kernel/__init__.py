"""Encodes and decodes records, frames and queue units: bytes in, bytes or columns out. No I/O, no clock, no state.

``orbitmq.kernel.plain`` is the definition, and the extension module ``orbitmq_kernel`` (crate ``kernel/``) its
compiled twin. The interface is the ``__all__`` of these modules; its functions are those of the kernel chosen when
this package was imported (``chosen.py``). Numbers and positions are in ``layout.py``, which both twins share.
"""

from orbitmq.kernel.plain.answers import *
from orbitmq.kernel.plain.columns import *
from orbitmq.kernel.plain.frames import *
from orbitmq.kernel.plain.hashes import *
from orbitmq.kernel.plain.index import *
from orbitmq.kernel.plain.pops import *
from orbitmq.kernel.plain.pulls import *
from orbitmq.kernel.plain.records import *
from orbitmq.kernel.plain.select import *
from orbitmq.kernel.plain.sends import *

# isort: split
from orbitmq.kernel.chosen import *  # compiled functions, in place of the plain ones
from orbitmq.kernel.chosen import NAME as NAME
