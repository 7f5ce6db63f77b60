"""What the TPU kernels of several ops share."""
