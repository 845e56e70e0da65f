"""Public names explain themselves: every parameter is named, and one example runs."""

import doctest
import inspect
import re

import pytest
import torch

import posterior_trees

UNSAID = {"self", "args", "kwargs", "options"}


def parameters(name: str) -> set[str]:
    found = getattr(posterior_trees, name)
    if isinstance(found, type) and issubclass(found, Exception):
        return set()
    return set(inspect.signature(found).parameters) - UNSAID


@pytest.mark.parametrize("name", posterior_trees.__all__)
def test_a_public_name_says_what_its_parameters_are(name: str) -> None:
    text = inspect.getdoc(getattr(posterior_trees, name)) or ""
    said = set(re.findall(r"`(\w+)(?:=[^`]*|\[\w+\])?`", text))
    assert parameters(name) <= said, parameters(name) - said


@pytest.mark.parametrize("name", posterior_trees.__all__)
def test_the_example_of_a_public_name_runs(name: str) -> None:
    text = inspect.getdoc(getattr(posterior_trees, name)) or ""
    known = {public: getattr(posterior_trees, public) for public in posterior_trees.__all__}
    example = doctest.DocTestParser().get_doctest(text, known | {"torch": torch}, name, None, None)
    assert example.examples, f"{name} has no example"
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(verbose=False, optionflags=options)
    said: list[str] = []
    runner.run(example, out=said.append)
    assert runner.failures == 0, "".join(said)
