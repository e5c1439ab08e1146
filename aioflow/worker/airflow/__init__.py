"""A minimal stand-in for the parts of Airflow that its triggers and operators import.

The stand-in is active only in child processes, and only if Airflow itself is not installed.
``import airflow`` then finds these modules under Airflow's names. Lightweight triggers of Airflow
providers run unchanged.
"""
