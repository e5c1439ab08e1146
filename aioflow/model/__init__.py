"""The vocabulary shared by all packages: frozen structs without behaviour.

* A **DAG** is what an author wrote; a **version** is the hash of the code it came from.
* A **run** is one execution of a DAG. ``run_id`` is its public name, ``run_no`` its row.
* A **task** of a DAG has a ``task_id`` and a ``task_index`` (its index in the DAG's tasks).
  One execution of it inside a run is a row ``task_no``; a mapped task has one per index.
"""
