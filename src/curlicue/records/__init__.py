"""What is kept on disk: run directories, atomic files, locks, and the state of a learner."""
