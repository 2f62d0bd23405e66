"""The kernel variants, a module for each family of kernels: a problem becomes a plan, or Unsupported says why not."""
