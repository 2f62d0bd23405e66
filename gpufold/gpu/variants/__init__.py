"""The kernel variants, a module per family of kernels: functions turn a problem into a plan or raise Unsupported."""
