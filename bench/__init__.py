"""Benchmarks of gpufold and its peers: `python -m bench --help`."""
