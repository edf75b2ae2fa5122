"""A collective of one's own: every rank's buffer moves to the next rank (MSCCLang's AllToNext)."""

from __future__ import annotations

import collsynth as cs
from collsynth.frontend import Recording


def alltonext(nodes: int, gpus: int) -> Recording:
    """Rank r's buffer to rank r + 1; between nodes every GPU carries a share over its own NIC."""
    n = nodes * gpus
    wanted = {(rank + 1, unit): (rank, unit) for rank in range(n - 1) for unit in range(gpus)}
    collective = cs.custom(n, wanted)
    with cs.record(collective, in_place=False, name=f"alltonext_{n}") as p:
        for rank in range(n - 1):
            buffer = p.chunk(rank, "input", 0, gpus)
            if (rank + 1) % gpus:
                buffer.copy(rank + 1, "output", 0)
                continue
            for g, share in enumerate(buffer.split(gpus)):
                if rank - rank % gpus + g != rank:
                    share = share.copy(rank - rank % gpus + g, "scratch", 0)
                if g:
                    share = share.copy(rank + 1 + g, "scratch", 1)
                share.copy(rank + 1, "output", g)
    return p
