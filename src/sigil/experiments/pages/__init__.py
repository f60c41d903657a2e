"""How results are shown: tables, figures, and pages in Markdown, HTML and CSV."""
