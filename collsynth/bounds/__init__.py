"""Provable lower bounds on the time of a collective, with certificates.

`bound` is the way in; one file holds one kind of proof: `cuts`, `partitions`, `concurrent_flow`,
`latency`; `certificates` checks them without any solver.
"""

from __future__ import annotations

from .api import bound, latency_bound
from .certificates import check_certificate
from .types import Bottleneck, Bound, Certificate

__all__ = ["Bottleneck", "Bound", "Certificate", "bound", "check_certificate", "latency_bound"]
