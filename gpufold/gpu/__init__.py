"""The GPU wing: plans, which are data, the kernel variants that make them, and the launch that runs one."""
