"""What every experiment uses: scales, the store of trainings and cells, and the command that runs them."""
