"""Stands in for the little of Airflow that triggers written for it import.

Only in children, and only where Airflow itself is not installed: ``import airflow`` then finds
these modules, under Airflow's names. Light triggers of its providers are hosted as they are.
"""
