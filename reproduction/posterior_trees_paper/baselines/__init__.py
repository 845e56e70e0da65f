"""Baselines that are trained: diffusion models, GANs, plain networks."""
