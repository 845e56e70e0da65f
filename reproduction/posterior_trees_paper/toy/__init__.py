"""The paper's 2-D mixture, where the posterior is known."""
