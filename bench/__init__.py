"""Measures gpufold beside its peers: `python -m bench --help`."""
