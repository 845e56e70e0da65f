"""The reproduction of the paper: baselines, comparisons, studies, benchmarks."""
