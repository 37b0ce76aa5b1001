"""The demo of a checkout: `make demo`. What is installed has the same as `stager demo`."""

from stager_demo.__main__ import begin

if __name__ == "__main__":
    begin()
