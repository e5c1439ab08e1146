"""Long campaigns against the whole product; ``make nightly`` runs them and keeps their figures."""
