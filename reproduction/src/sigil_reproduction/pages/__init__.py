"""Pages about results: the report on a scale, its figures, its claims and its prose."""
