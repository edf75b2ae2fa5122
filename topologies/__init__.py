"""Machines by name: generators and data, each with its source.

A built-in is a function from parameters to a `Topology`, listed in `collsynth.registry.BUILT_IN`.
"""
