"""The paper's studies, measured: what its design choices are worth, in numbers.

A study is a file in `recipes/studies/`: variants of a recipe, each trained with a few seeds.

    plan.py       the file → the runs of a study
    execute.py    train and judge the runs, side by side, resumable
    watch.py      what every leaf does after each epoch
    examine.py    trained model → numbers per test image: diversity, best leaf, digits read, and
                  how many pictures a user looks at before the right one
    classifier.py a small digit reader, to say what a leaf shows
    minority.py   the runner-up digit: its probability and its leaves
    rows.py       numbers per image → one row per run, and the findings of a study: all of them
    tables.py     rows → a Markdown table
    panels.py     findings → the panels of its figure;  figures.py  draws them
    report.py     writes table, numbers and figure

Flat against hierarchical K-means, which needs no training, is in `toy/clustering.py`.
"""
