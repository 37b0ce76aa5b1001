"""Real frameworks on staged data: a file is a framework, and each of its functions one run.

A run is a program of its own, as a user would write it: it trains, and saves which samples each rank saw,
each compared with its source. `python -m frameworks` runs all of them, in an environment of their own: `make
frameworks`. A short part is in the suite (test_frameworks.py, test_environments.py).
"""
