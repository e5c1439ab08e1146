"""Long campaigns against the whole product; ``make nightly`` runs them and stores their figures."""
