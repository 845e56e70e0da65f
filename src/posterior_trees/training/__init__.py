"""What a run is made of, `train.py` being its loop: batches, steps, weights, health, files."""
