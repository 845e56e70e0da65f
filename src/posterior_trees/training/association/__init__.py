"""Which leaf learns from which image, beyond the nearest: starts, surprise, conscience, focus."""
