"""`nvidia-smi topo -m`: counts of the corpus, the meaning of cells, damaged text, other tools' text."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsynth.bounds import bound
from collsynth.errors import InputError, UnknownSpeedError
from collsynth.formats import load_topology, parse_topology
from collsynth.formats.gpu_models import CLASSES, gpu_class
from collsynth.formats.nvidia_smi import read_matrix
from collsynth.topology import Capability, LinkState, Topology, VertexKind

GB = 10**9
Cells = Callable[[int, int], str]


def matrix(count: int, cell: Cells, nics: list[list[str]] | None = None, tail: str = "0-31\t0\t\tN/A") -> str:
    """The tool's native layout: cell(i, j), then one list of paths a GPU for the NICs."""
    nics = nics or [[] for _ in range(count)]
    head = [f"GPU{i}" for i in range(count)] + [f"NIC{i}" for i in range(len(nics[0]))]
    lines = ["\t" + "\t".join([*head, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for i in range(count):
        cells = [" X " if i == j else cell(i, j) for j in range(count)]
        lines.append("\t".join([f"GPU{i}", *cells, *nics[i], tail]))
    return "\n".join(lines) + "\n"


def uniform(value: str) -> Cells:
    return lambda i, j: value


def busbw(machine: Topology, collective: str = "allgather") -> float:
    """Bound as bus bandwidth in GB/s."""
    n = machine.nranks
    factor = 2 * (n - 1) / n if collective == "allreduce" else (n - 1) / n
    return factor / float(bound(machine, collective).seconds_per_byte) / GB


def hubs(machine: Topology) -> list[str]:
    return [v.name for v in machine.vertices if v.kind is VertexKind.SWITCH]


# --- the corpus ------------------------------------------------------------------------------------

MODELS = {
    "01": "V100", "02": "Tesla V100-SXM2-32GB", "03": "v100", "09": "A100-SXM4-40GB", "10": "A100", "11": "a100",
    "13": "NVIDIA A100-SXM4-80GB", "14": "A100 80GB PCIe", "15": "a100-pcie", "16": "A100", "18": "RTX A4000",
    "25": "A800-SXM4-80GB", "26": "H800", "27": "H800", "28": "L40", "30": "B200", "33": "NVIDIA H100 80GB HBM3",
    "34": "V100", "35": "H100-SXM", "36": "H200", "39": "P100", "40": "P40", "42": "RTX 4090", "44": "A100",
    "45": "A100", "47": "A100", "48": "RTX 5090", "51": "H100", "54": "A100", "55": "B200",
}  # fmt: skip


def manifest(corpus: Path) -> list[dict[str, str]]:
    with (corpus / "topology" / "MANIFEST.csv").open() as stream:
        return [row for row in csv.DictReader(stream) if row["file"].startswith("nvidia-smi/")]


@pytest.mark.corpus
def test_every_corpus_matrix_has_the_manifest_counts(corpus: Path) -> None:
    rows = manifest(corpus)
    assert len(rows) >= 30
    for row in rows:
        path = corpus / "topology" / row["file"]
        for model in (None, MODELS[path.name[:2]]):
            machine = load_topology(path, gpu_model=model)
            nics = sum(v.kind is VertexKind.NIC for v in machine.vertices)
            assert (machine.nranks, nics) == (int(row["expected_gpus"]), int(row["expected_nics"])), path.name
            assert bool(machine.unknown_speeds()) == (model is None), path.name
            assert machine.assumptions, path.name


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("file", "ranks", "collective", "figure"),
    [
        ("01-dgx1v-v100x8-4nic.txt", None, "allgather", 150),
        ("01-dgx1v-v100x8-4nic.txt", [0, 1, 2, 3, 7], "allgather", 25),
        ("01-dgx1v-v100x8-4nic.txt", [0, 1, 2, 3, 7], "allreduce", 40),  # algbw 25
        ("01-dgx1v-v100x8-4nic.txt", [0, 1, 2, 3], "allgather", 100),
        ("03-v100x8-cloud-permuted.txt", None, "allgather", 150),
        ("10-dgx-a100-12nic-truncated.txt", None, "allgather", 300),
        ("13-a100x4-slice-1nic-ansi.txt", None, "allgather", 300),
        ("15-a100pcie-x8-bridged-pairs.txt", None, "allgather", 38.5),
        ("15-a100pcie-x8-bridged-pairs.txt", [0, 1, 2], "allgather", 24),
        ("15-a100pcie-x8-bridged-pairs.txt", [0, 1, 2], "allreduce", 32),  # algbw 24
        ("33-h100x8-vm-reversed-nics.txt", None, "allgather", 450),
        ("54-perlmutter-a100x4-reversed-numa.txt", None, "allgather", 300),
        ("55-hgx-b200x8-container-no-nic.txt", None, "allgather", 900),
    ],
)
def test_bounds_of_the_cases(corpus: Path, file: str, ranks: list[int] | None, collective: str, figure: float) -> None:
    machine = load_topology(corpus / "topology" / "nvidia-smi" / file, gpu_model=MODELS[file[:2]])
    machine = machine if ranks is None else machine.subset(ranks)
    assert busbw(machine, collective) == pytest.approx(figure, rel=1e-12)


@pytest.mark.corpus
def test_switch_or_direct_is_the_same_with_and_without_the_model(corpus: Path) -> None:
    for row in manifest(corpus):
        path = corpus / "topology" / row["file"]
        one, other = load_topology(path), load_topology(path, gpu_model=MODELS[path.name[:2]])
        assert one.vertices == other.vertices, path.name
        assert np.array_equal(one.link_src, other.link_src) and np.array_equal(one.link_count, other.link_count)


@pytest.mark.corpus
def test_rails_follow_the_nearest_path_not_the_order(corpus: Path) -> None:
    folder = corpus / "topology" / "nvidia-smi"
    reversed_nics = load_topology(folder / "33-h100x8-vm-reversed-nics.txt")
    rails = {v.name: v.rail for v in reversed_nics.vertices}
    assert [rails[f"gpu:{i}"] for i in range(8)] == list(range(8))
    assert [rails[f"nic:{i}"] for i in range(9)] == [None, 7, 6, 5, 4, 3, 2, 1, 0]
    interleaved = {v.name: v.rail for v in load_topology(folder / "27-h800x8-9nic-interleaved.txt").vertices}
    assert interleaved["nic:1"] == interleaved["gpu:4"] and interleaved["nic:2"] == interleaved["gpu:0"]
    storage = load_topology(folder / "10-dgx-a100-12nic-truncated.txt")
    assert sum(v.kind is VertexKind.NIC and v.rail is None for v in storage.vertices) == 4
    assert any("storage or front-end" in warning and "mlx5_4" in warning for warning in storage.warnings)


@pytest.mark.corpus
def test_all_sys_box_warns(corpus: Path) -> None:
    path = corpus / "topology" / "nvidia-smi" / "35-hx00-x8-no-nvlink-8rails.txt"
    assert any("8 GPUs, no NVLink: the fabric manager is not running" in w for w in load_topology(path).warnings)
    assert any("no NVLink though H100-SXM has 18" in w for w in load_topology(path, gpu_model="H100").warnings)


# --- what cells mean -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "cell", "model", "switched", "per_pair"),
    [
        (8, "NV12", "A100", True, 12),
        (4, "NV12", None, True, 12),
        (4, "NV4", "A100", False, 4),
        (4, "NV6", "H100-SXM", False, 6),
        (4, "NV6", None, False, 6),
        (4, "NV6", "V100", True, 6),
        (16, "NV6", None, True, 6),
        (4, "NV8", None, True, 8),
        (4, "NV18", "GB200", True, 18),
        (2, "NV18", None, False, 18),
        (2, "NV36", None, False, 36),
    ],
)
def test_a_row_sum_beyond_the_physical_links_is_a_switch(
    count: int, cell: str, model: str | None, switched: bool, per_pair: int
) -> None:
    machine = parse_topology(matrix(count, uniform(cell)), "m", gpu_model=model)
    assert hubs(machine) == (["nvswitch:0"] if switched else [])
    assert set(machine.link_count.tolist()) == {per_pair}
    assert machine.nlinks == (2 * count if switched else count * (count - 1))
    assert not any(v.kind is VertexKind.HOST for v in machine.vertices)


def test_one_link_of_eighteen_down() -> None:
    text = matrix(8, lambda i, j: "NV17" if 7 in (i, j) else "NV18")
    machine = parse_topology(text, "m", gpu_model="H100")
    assert any("GPU7 (rank 7) shows 17 of 18" in warning for warning in machine.warnings)
    assert [k.state for k in machine.links() if 7 in (k.src, k.dst)] == [LinkState.DEGRADED] * 2
    assert busbw(machine) == pytest.approx(425)
    assert busbw(machine, "allreduce") == pytest.approx(446.875)


def test_a_gpu_off_the_fabric_comes_over_pcie_and_is_named() -> None:
    def cell(i: int, j: int) -> str:
        return "NV18" if 3 not in (i, j) else "NODE" if i // 4 == j // 4 else "SYS"

    machine = parse_topology(matrix(8, cell, tail=""), "m", gpu_model="B200")
    assert any("GPU3 (rank 3) is off the NVLink fabric" in warning for warning in machine.warnings)
    assert busbw(machine) == pytest.approx(48)
    assert 1 / float(bound(machine, "allreduce").seconds_per_byte) / GB == pytest.approx(48)
    assert busbw(machine.subset([0, 1, 2, 4, 5, 6, 7])) >= 900


def test_odd_counts_warn_by_class() -> None:
    pair = matrix(2, uniform("NV3"))
    assert any("NV3 (GPU0-GPU1) is no shipping link count" in w for w in parse_topology(pair, "m").warnings)
    assert any("of A6000 (4)" in w for w in parse_topology(pair, "m", gpu_model="RTX A6000").warnings)
    assert not parse_topology(pair, "m", gpu_model="V100").warnings
    assert any("no shipping" in w for w in parse_topology(matrix(8, uniform("NV17")), "m").warnings)


def test_the_pcie_tree_follows_the_cells() -> None:
    def cell(i: int, j: int) -> str:
        if i // 4 != j // 4:
            return "SYS"
        return "PIX" if i // 2 == j // 2 else "PXB" if i < 4 else "NODE"

    machine = parse_topology(matrix(8, cell, tail=""), "m", gpu_model="L40")
    names = [vertex.name for vertex in machine.vertices]
    pairs = {(names[k.src], names[k.dst]): k.bandwidth for k in machine.links()}
    near = {a: b for a, b in pairs if a.startswith("gpu")}
    assert near["gpu:0"] == near["gpu:1"] != near["gpu:2"] == near["gpu:3"]
    upper = {b for a, b in pairs if a == near["gpu:0"] and b.startswith("pcie")}
    assert len(upper) == 1, "two cascaded switches meet under a third"
    assert (upper.pop(), "host:0") in pairs
    assert pairs["host:0", "host:1"] == 22 * GB
    assert pairs[near["gpu:4"], "host:1"] == 24 * GB
    assert sum(v.kind is VertexKind.PCIE_SWITCH for v in machine.vertices) == 5


def test_nics_make_no_path_between_gpus() -> None:
    text = matrix(4, uniform("NV12"), [["PIX"], ["PIX"], ["SYS"], ["SYS"]])
    machine = parse_topology(text, "m", gpu_model="A100")
    nic = machine.vertex_id("nic:0")
    assert nic not in machine.link_src and nic not in machine.link_dst
    assert [v.rail for v in machine.vertices[:4]] == [0, 0, 0, 0]


def test_a_single_gpu() -> None:
    machine = parse_topology(matrix(1, uniform("X"), [["SYS"]]), "m", gpu_model="A100")
    assert (machine.nranks, machine.nlinks) == (1, 0)


def test_without_a_model_speeds_are_refused_with_the_list() -> None:
    machine = parse_topology(matrix(4, uniform("NV12")), "m")
    assert len(machine.unknown_speeds()) == machine.nlinks == 8
    with pytest.raises(UnknownSpeedError, match=r"gpu:0->nvswitch:0.*--gpu-model"):
        machine.require_speeds()


def test_multicast_needs_a_switch_that_can() -> None:
    box = matrix(8, uniform("NV18"))
    machine = parse_topology(box, "m", gpu_model="H100", multicast=True)
    assert machine.vertices[machine.vertex_id("nvswitch:0")].capability is Capability.REDUCE_TO_REQUESTER
    for text, model, message in (
        (box, None, "not known without the GPU model"),
        (matrix(8, uniform("NV12")), "A100", "does not multicast"),
        (matrix(2, uniform("NV4")), "A100", "no NVSwitch"),
    ):
        with pytest.raises(InputError, match=message):
            parse_topology(text, "m", gpu_model=model, multicast=True)


def test_a_model_with_fewer_links_than_shown_is_refused() -> None:
    with pytest.raises(InputError, match="m:2: GPU0 shows NV12, but V100 has 6 NVLinks"):
        parse_topology(matrix(8, uniform("NV12")), "m", gpu_model="V100")


@pytest.mark.parametrize("name", [spelling for entry in CLASSES for spelling in (entry.name, *entry.aliases)])
def test_every_spelling_of_a_model_is_found(name: str) -> None:
    entry = next(e for e in CLASSES if name in (e.name, *e.aliases))
    assert gpu_class(name) is gpu_class(f"NVIDIA {name.upper()}") is entry


def test_an_unknown_model_lists_the_classes() -> None:
    with pytest.raises(InputError, match=r"--gpu-model: 'H1000'.*one of P100, V100.*try H100"):
        gpu_class("H1000")


# --- text ------------------------------------------------------------------------------------------


def mangled(text: str) -> dict[str, str]:
    """What pasting does to the text."""
    lines = text.split("\n")
    return {
        "escapes": text.replace("\tGPU0", "\x1b[4m\tGPU0", 1).replace("ID\n", "ID\x1b[0m\n", 1),
        "carriage returns": text.replace("\n", "\r\n"),
        "blanks": text.expandtabs(8),
        "indented": "\n".join("        " + line for line in lines),
        "no header": "\n".join(lines[1:]),
        "glued header": lines[0].replace("\t", "") + "\n" + "\n".join(lines[1:]),
        "no affinity": text.replace("0-31\t0\t\tN/A", ""),
        "glued affinity": text.replace("0-31\t0\t\tN/A", "0-310N/A"),
        "prompt before": "$ nvidia-smi topo -m\n" + text + "\nLegend:\n\n  X    = Self\n  SYS  = Connection\n",
        "nic rows": text + "NIC0\tPIX\tSYS\tSYS\tPIX\t X \t\t\t\n",
    }


@pytest.mark.parametrize("damage", list(mangled("")))
def test_pasted_text_reads_like_the_original(damage: str) -> None:
    text = matrix(4, lambda i, j: "NV12" if i // 2 == j // 2 else "SYS", [["PIX"], ["SYS"], ["SYS"], ["PIX"]])
    original, pasted = read_matrix(text, "m"), read_matrix(mangled(text)[damage], "m")
    assert (original.gpus, original.links, original.paths, original.nics, original.nic_paths) == (
        pasted.gpus, pasted.links, pasted.paths, pasted.nics, pasted.nic_paths,
    )  # fmt: skip


def test_cells_that_contradict_each_other_warn() -> None:
    text = matrix(2, lambda i, j: "NV4" if i else "NV12")
    found = read_matrix(text, "m")
    assert found.links == ((0, 4), (4, 0)) and "GPU0 to GPU1 is NV12 but back it is NV4" in found.warnings[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n", "m:2: this is a peer-access matrix"),
        ("\tGPU0\tGPU1\n GPU0\tX\tGNS\n GPU1\tGNS\tX\n", "peer-access matrix"),
        ("GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n", "m:1: this is a list of links"),
        ("| | GPU0 | GPU1 |\n|---|---|---|\n| GPU0 | X | NV4 |\n", "m:1: this is a table with bars"),
        ("       GPU0 GPU1\nGPU0   0    15\nGPU1   15   0\n", "m:2: this looks like `rocm-smi"),
        ("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV4\tNV4\nGPU1\tNV4\tX\tNV4\n", "the header names 3 GPUs, but there are 2"),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\n", "m:3: GPU1 has 1 cells"),
        ("GPU0 X NV4\nGPU1 NV4 X\nGPU0 X NV4\nGPU1 NV4 X\n", "m:3: GPU0 has a second row .first at line 1"),
        ("GPU0 X NV4\nGPU1 X NV4\n", "m:2: GPU1 has X in column 1"),
        ("GPU0 X NV4 NV4\nGPU1 NV4 X NV4\n", "m:1: GPU0 has NV4 in the column of a NIC"),
        ("GPU0 and GPU1 are fast\n", "there is no GPU row"),
    ],
)
def test_other_texts_are_refused_with_what_they_are(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_topology(text, "m")


@given(
    st.lists(
        st.lists(st.sampled_from(["X", "NV1", "NV12", "PIX", "PXB", "SYS", "OK", "0-3", "N/A", ""]), max_size=5),
        max_size=5,
    ),
    st.sampled_from(["A100", "V100", "L40", None]),
)
def test_no_matrix_raises_anything_but_an_input_error(rows: list[list[str]], model: str | None) -> None:
    text = "\n".join(f"GPU{i} " + " ".join(row) for i, row in enumerate(rows))
    try:
        parse_topology(text, "m", gpu_model=model)
    except InputError:
        return


@given(st.integers(2, 6), st.data())
def test_any_symmetric_matrix_gives_a_connected_machine(count: int, data: st.DataObject) -> None:
    kinds = st.sampled_from(["NV1", "NV2", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS"])
    cells = {(i, j): data.draw(kinds) for i in range(count) for j in range(i)}
    text = matrix(count, lambda i, j: cells[max(i, j), min(i, j)], tail="")
    machine = parse_topology(text, "m", gpu_model="A100")
    reached = {0}
    for _ in range(len(machine.vertices)):
        reached |= {int(d) for s, d in zip(machine.link_src, machine.link_dst, strict=True) if int(s) in reached}
    assert set(range(count)) <= reached
    assert (machine.link_bandwidth > 0).all()
