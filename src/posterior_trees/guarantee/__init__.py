"""What probabilities are worth: fitted and certified on images that chose nothing."""
