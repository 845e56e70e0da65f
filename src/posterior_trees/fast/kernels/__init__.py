"""Triton kernels for CUDA; imported only where they run, for Triton is not everywhere."""
