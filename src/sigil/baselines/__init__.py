"""The two watermarks that the paper compares with: what a server with more power could do.

Both are embedded in the same federation, by an observer of the clients, and verified by the same verb:

>>> from sigil.baselines import Backdoor, ParameterMark

``embed`` them with ``sigil.federation.train(..., client_observers=[mark])``, then ``mark.verify(...)``. That
they must be observers of a *client* is the point: see docs/baselines.md.
"""

from sigil.baselines.backdoor import Backdoor
from sigil.baselines.parameter import ParameterMark
from sigil.baselines.report import BaselineReport

__all__ = ["Backdoor", "BaselineReport", "ParameterMark"]
