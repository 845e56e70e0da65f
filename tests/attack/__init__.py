"""The attack: hostile inputs by the thousand, run by hand with `python -m tests.attack`.

Each part is a module with `attack(seed, count)`, which gives how many inputs it tried and what
failed.
"""
