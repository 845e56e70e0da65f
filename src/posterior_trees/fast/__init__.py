"""Everything that exists only for speed; results stay those of the plain network."""
