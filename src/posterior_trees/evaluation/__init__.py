"""How good trees are: metrics over a set of images, and images to look at."""
