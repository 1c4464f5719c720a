"""Switch strategies during a run: order of phases, moment of a switch, state carried over."""
