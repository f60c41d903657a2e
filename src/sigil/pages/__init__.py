"""What pages of runs and of results share: tables, figures, prose, and pages in Markdown, HTML and CSV."""
