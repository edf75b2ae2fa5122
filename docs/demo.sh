#!/bin/sh
# The main job, end to end: a 2-node machine -> schedule -> XML, verified, simulated, executed.
set -eu
machine=dgx-a100:nodes=2
out=demo-output
mkdir -p "$out"

step() {
    printf '\n$ %s\n' "$*"
    "$@"
}

step collsynth bound allreduce -t $machine -s 64M
step collsynth synth allreduce -t $machine -s 64M -o $out/allreduce.xml -f
step collsynth synth allgather -t $machine -s 64M -o $out/allgather.xml -f
step collsynth verify $out/allreduce.xml $out/allgather.xml --target msccl-executor
step collsynth inspect $out/allreduce.xml
step collsynth simulate $out/allreduce.xml $out/allgather.xml -t $machine -s 1M,64M
step collsynth run $out/allreduce.xml --backend numpy -s 1M
step collsynth launch -n 16 collsynth run $out/allreduce.xml --backend mpi --assume-hosts 2 -s 1M
echo
echo "demo: everything above was verified and checked; files are in $out/"
