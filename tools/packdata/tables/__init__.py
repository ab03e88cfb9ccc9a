"""Tables: CSV, JSON lines, Parquet and Arrow files to rows of numbers, categories and targets.

``scan`` reads everything once and finds types, statistics and categories; ``columns`` decides what becomes of each
column; ``recipe`` packs part by part; ``plan`` puts them together. A row that cannot be packed is found while it is
packed: the statistics cover it. No file is ever in memory as a whole.
"""

from packdata.tables.plan import TablesPlan, pack_tables, plan_tables

__all__ = ["TablesPlan", "pack_tables", "plan_tables"]
