"""Make the chapters of a report: each takes the scope and returns one section, or None."""
