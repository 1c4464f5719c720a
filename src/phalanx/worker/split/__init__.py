"""Worker role of split runs, and the measurements taken before parts are placed."""
