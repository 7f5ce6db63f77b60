"""Code shared by the TPU kernels of several ops."""
