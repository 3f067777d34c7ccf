"""Work queues among real processes: kills, fairness, a slow worker, poison, expiry, and rates beside JetStream."""
