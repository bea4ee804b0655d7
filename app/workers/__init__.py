"""Workers: who has asked for work, and what operators want them to do. For people and signals; never for fencing."""
