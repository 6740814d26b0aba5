"""What a person sees of plans, diffs, inventories and reports. Needs neither torch nor a solver."""
