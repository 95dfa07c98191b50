"""Several machines and several brokers: PostgreSQL, CURVE hosts, Ray."""
