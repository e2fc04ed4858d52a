"""Encodes and decodes records, frames and queue units. It converts bytes to bytes or columns, and uses no I/O, clock
or state.

``orbitmq.kernel.plain`` is the reference implementation, and the extension module ``orbitmq_kernel`` (crate
``kernel/``) its compiled twin. The interface consists of the names in ``__all__`` of the plain modules. The functions
of this package are those of the kernel chosen when it was imported (``chosen.py``). Numbers and positions are in
``layout.py``, which both kernels share.
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
