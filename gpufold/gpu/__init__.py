"""The GPU backend: plans as data, the kernel variants that make them, and the launch of a plan."""
