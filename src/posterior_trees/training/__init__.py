"""Training: batches, steps, weights, health and files of a run, and the loop (`trainer`)."""
