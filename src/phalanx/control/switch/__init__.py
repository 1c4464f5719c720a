"""Switch strategies during a run: which phase follows which, when, and what is carried over."""
