"""Our kernels, one file each, and what is needed to run and to capture them."""
