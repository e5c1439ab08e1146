"""A minimal stand-in for the parts of Airflow that its triggers and operators import.

It is active only in children, and only if Airflow itself is not installed. ``import airflow`` then
finds these modules under Airflow's names. Lightweight triggers of Airflow providers run unchanged.
"""
