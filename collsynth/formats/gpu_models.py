"""GPU classes: how many NVLinks, how fast, and which PCIe generation.

NVLink figures are line rates of one link and direction.  PCIe figures are what NCCL credits a x16
slot with (`PCIE_EFFECTIVE`, about 76 % of the line rate): a copy over PCIe never reaches the line
rate, so a bound from it would be one that no machine can meet.

Sources: NVIDIA's architecture whitepapers; NCCL 2.x `src/graph/topo.h` and `topo.cc` for PCIe and
socket links; link counts per product from published `nvidia-smi topo -m` and NCCL dumps.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from ..errors import InputError

GB = 10**9

#: Effective bytes/s of a x16 slot by PCIe generation (NCCL's path speeds).
PCIE_EFFECTIVE = {3: 12 * GB, 4: 24 * GB, 5: 48 * GB, 6: 96 * GB}
#: Line rate of the same slots, for messages.
PCIE_LINE = {3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}
#: Between CPU sockets (NCCL: Skylake 10, AMD 16, Sapphire Rapids 22, Emerald Rapids 40).
SOCKET_OLD = 10 * GB
SOCKET = 22 * GB


@dataclass(frozen=True, slots=True)
class GpuClass:
    """One class of GPUs.

    Attributes:
        name: the canonical name.
        links: NVLinks of one GPU (0: none).
        counts: NV numbers that intact machines of this class show.
        link_bandwidth: bytes/s of one NVLink and direction.
        pcie: PCIe generation of its x16 slot.
        multicast: its NVSwitch can multicast and reduce (NVLS).
        aliases: other spellings, without blanks, dashes, vendor words and memory sizes.
    """

    name: str
    links: int
    counts: frozenset[int]
    link_bandwidth: int
    pcie: int
    multicast: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def socket(self) -> int:
        """Assumed bytes/s of the link between two sockets of a host of this class's time."""
        return SOCKET_OLD if self.pcie == 3 else SOCKET


def _gpu(
    name: str, links: int, counts: tuple[int, ...], gbps: float, pcie: int, *aliases: str, multicast: bool = False
) -> GpuClass:
    return GpuClass(name, links, frozenset(counts), round(gbps * GB), pcie, multicast, aliases)


CLASSES = (
    _gpu("P100", 4, (1, 2, 3, 4), 20, 3, "p100sxm2"),
    _gpu("V100", 6, (1, 2, 3, 4, 5, 6), 25, 3, "v100sxm2", "v100sxm3", "v100s"),
    _gpu("TU102", 2, (1, 2), 25, 3, "rtx2080ti", "titanrtx", "rtx6000turing", "rtx8000"),
    _gpu("A100", 12, (4, 12), 25, 4, "a100sxm4", "a100sxm", "a100pcie", "a100x"),
    _gpu("A800", 8, (8,), 25, 4, "a800sxm4", "a800sxm", "a800pcie"),
    _gpu("H800", 8, (8,), 25, 5, "h800sxm5", "h800sxm", multicast=True),
    _gpu("H100-SXM", 18, (6, 18), 25, 5, "h100", "h100sxm5", "h100hbm3", "h10080gbhbm3", multicast=True),
    _gpu("H100-PCIe", 12, (12,), 25, 5, "h100nvl"),
    _gpu("H200", 18, (6, 18), 25, 5, "h200sxm", "h200sxm5", "h200hbm3e", multicast=True),
    _gpu("H200-NVL", 18, (6, 18), 25, 5),
    _gpu("H20", 18, (18,), 25, 5, "h20sxm", "h20hbm3", multicast=True),
    _gpu("GH200", 18, (6, 18), 25, 5, "gh20096gbhbm3", multicast=True),
    _gpu("B200", 18, (18,), 50, 5, "b200sxm", "b200sxm6", "b200hgx", multicast=True),
    _gpu("B300", 18, (18,), 50, 6, "b300sxm", "b300sxm6", multicast=True),
    _gpu("GB200", 18, (18,), 50, 5, "gb200nvl72", multicast=True),
    _gpu("GB300", 18, (18,), 50, 6, "gb300nvl72", multicast=True),
    _gpu("RTX3090", 4, (4,), 14.0625, 4, "rtx3090ti", "3090", "3090ti"),
    _gpu("A6000", 4, (4,), 14.0625, 4, "rtxa6000"),
    _gpu("A5500", 4, (4,), 14.0625, 4, "rtxa5500", "a5000", "rtxa5000"),
    _gpu("A40", 4, (4,), 14.0625, 4),
    _gpu("P40", 0, (), 0, 3, "p4", "gtx1080ti"),
    _gpu("T4", 0, (), 0, 3),
    _gpu("A10", 0, (), 0, 4, "a10g", "a16", "a2"),
    _gpu("A4000", 0, (), 0, 4, "rtxa4000", "rtxa4500", "rtx3080", "rtx3080ti", "rtx3070"),
    _gpu("L40", 0, (), 0, 4, "l40s", "l40g", "l20", "l4", "l2"),
    _gpu("RTX4090", 0, (), 0, 4, "4090", "rtx4080", "rtx6000ada", "rtx5000ada", "rtx4000ada", "rtx6000adageneration"),
    _gpu("RTX5090", 0, (), 0, 5, "5090", "rtx5080"),
    _gpu("RTX-PRO-6000", 0, (), 0, 5, "rtxpro6000blackwell", "rtxpro6000blackwellserveredition"),
)

_VENDOR_WORDS = re.compile(r"nvidia|tesla|geforce|quadro|graphicsdevice")
_MEMORY = re.compile(r"(?<=[a-z0-9])(?:16|24|32|40|48|80|94|96|141|180|192)gb")


def _key(text: str) -> str:
    words = _VENDOR_WORDS.sub("", re.sub(r"[^a-z0-9]", "", text.lower().replace("-", " ").replace(" ", " ")))
    return _MEMORY.sub("", words)


_BY_KEY = {_key(spelling): entry for entry in CLASSES for spelling in (entry.name, *entry.aliases)}


def gpu_class(model: str) -> GpuClass:
    """The class of a GPU by name, as a product is called (`NVIDIA A100-SXM4-80GB`) or as listed here.

    Case, blanks, dashes, vendor words and memory sizes do not matter.

    Raises:
        InputError: unknown; the message lists the classes.
    """
    key = _key(model[:100])
    if key in _BY_KEY:
        return _BY_KEY[key]
    close = difflib.get_close_matches(key, _BY_KEY, n=1)
    raise InputError(
        f"{model[:80]!r} is no GPU model that is known",
        where="--gpu-model",
        expected=f"one of {', '.join(entry.name for entry in CLASSES)}",
        hint=_BY_KEY[close[0]].name if close else None,
    )
