"""The weighted sampler: leaves that win too few images get more of them (paper: appendix)."""

from posterior_trees.balance.balancer import LeafBalancer
