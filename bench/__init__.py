"""Benchmarks: collectives the way nccl-tests measures them, and synthesis against its targets.

`python -m collsynth.bench COLL ...` (under `collsynth launch` or `mpirun`) is in `main`, its options in
`options`, its text in `table`, its timing in `measure`; `python -m collsynth.bench.synthesis` is in
`synthesis`.
"""
