"""The chapters of a report: each takes the scope and gives back one section, or none."""
