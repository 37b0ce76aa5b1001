"""TensorStore and zarr-python: bench/workloads/volumes/others.py has their runs."""

from importlib.metadata import version

from bench.peers.common import say

if __name__ == "__main__":
    say({"version": f"{version('tensorstore')} (zarr {version('zarr')})"})
