"""The explorer's server: a user's pictures in, pages and trees out."""
