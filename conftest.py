"""Modules that import a package which is not installed are not collected, and the header says which."""

from __future__ import annotations

from importlib.util import find_spec

NEEDS = {
    "bench/*.py": ("rich",),
    "bench/plots.py": ("matplotlib",),
    "bench/triton_fold.py": ("triton",),
    "gpufold/dask/*": ("dask",),
    "gpufold/gpu/launch.py": ("cupy",),
    "gpufold/jax/*": ("jax",),
    "gpufold/torch/*": ("torch",),
    "tests/test_bench.py": ("ml_dtypes", "rich"),
    "tests/test_clients.py": ("scipy",),
    "tests/test_dask.py": ("dask", "distributed", "hypothesis"),
    "tests/test_figures.py": ("ml_dtypes", "rich"),
    "tests/test_gpu_session.py": ("rich",),
    "tests/test_jax.py": ("jax", "ml_dtypes"),
    "tests/test_launch.py": ("ml_dtypes",),
    "tests/test_onnx.py": ("onnx", "ml_dtypes"),
    "tests/test_ptx.py": ("ml_dtypes",),
    "tests/test_readme.py": ("rich",),
    "tests/test_sources.py": ("ml_dtypes",),
    "tests/test_torch*.py": ("torch",),
    "tests/test_tuning.py": ("cupy", "ml_dtypes"),
}
"""What modules import besides NumPy and pytest: packages of an extra, or of `pip install --group test`."""

MISSING = frozenset(package for packages in NEEDS.values() for package in packages if find_spec(package) is None)

collect_ignore_glob = [pattern for pattern, packages in NEEDS.items() if MISSING.intersection(packages)]


def pytest_report_header():
    """Say what is left out."""
    return [f"not collected, without {', '.join(sorted(MISSING))}: {' '.join(collect_ignore_glob)}"] if MISSING else []
