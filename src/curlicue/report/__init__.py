"""Pictures of runs, made from what they left behind."""
