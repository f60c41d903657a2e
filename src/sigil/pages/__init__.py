"""Not public. What pages of runs and of results share: tables, figures, prose, Markdown, HTML and CSV."""
