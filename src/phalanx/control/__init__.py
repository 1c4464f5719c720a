"""RUN CONTROL: facts, pure policies that decide, and the controller, which alone acts."""
