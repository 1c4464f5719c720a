"""RECORDS → READING: numbers with units, and runs side by side; pure, nothing here prints."""
