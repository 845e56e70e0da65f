"""How fast is it, and against what: measurements that print their own conditions.

`clock` times and weighs, `work` counts operations and bytes, and one file per `ptrees bench`
command does the rest: `inference`, `expansion`, `training`, `growth`, and `rivals` for two of them.
Each returns a `Report`: rows, the conditions they were measured under, and notes about what was
left out.
Ratios are only ever between rows of one report.
"""

from posterior_trees_paper.bench.clock import Timing, peak_bytes, time_together
from posterior_trees_paper.bench.report import Report, conditions
from posterior_trees_paper.bench.work import Work, count_work
