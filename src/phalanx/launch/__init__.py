"""HOW PROCESSES START: a launcher turns worker specs into processes; it never knows strategies."""
