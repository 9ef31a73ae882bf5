"""For tests of pipelines: pytest fixtures, and failpoints that kill or supersede an attempt."""
