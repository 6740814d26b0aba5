"""What is written down: plans, inventories, graphs, reports and checkpoint headers."""
