"""Tools for tests of pipelines: pytest fixtures, and faults in attempts of builds."""
