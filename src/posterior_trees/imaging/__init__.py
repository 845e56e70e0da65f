"""Pixels in and out of files, whatever they show."""
