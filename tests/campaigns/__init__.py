"""Long campaigns against the whole product; ``make prove`` runs them and keeps what they saw."""
