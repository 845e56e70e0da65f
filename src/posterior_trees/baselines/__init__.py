"""What the paper compares with: samples of a posterior, clustered into a tree."""

from posterior_trees.baselines.cluster import hierarchical_kmeans

__all__ = ["hierarchical_kmeans"]
