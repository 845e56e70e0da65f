"""How fast is it, and against what: measurements that print their own conditions.

`clock` times and weighs, `work` counts operations and bytes, and one file per `ptrees bench`
command does the rest: `inference`, `expansion`, `training`, `growth`, and `rivals` for two of them.
Each returns a `Report`: rows, the conditions they were measured under, and notes about what was
left out.
Ratios are only ever between rows of one report.
"""
