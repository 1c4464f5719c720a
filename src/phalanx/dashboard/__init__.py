"""Show runs, studies and plans in a browser, live, from their directories alone."""
