"""Turn records into reports: statistics, comparisons, tables and charts; nothing here prints."""
