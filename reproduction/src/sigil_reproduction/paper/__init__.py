"""The paper's experiments, one file for each table, figure or section with numbers, named by its number."""
