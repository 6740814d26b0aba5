"""What there is to place on: probing this machine, declaring another, rates with their sources, budgets."""
