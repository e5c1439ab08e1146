"""The vocabulary shared by all packages: frozen structs without behaviour.

* A **DAG** is what an author wrote; a **version** is the hash of the code it came from.
* A **run** is one execution of a DAG. ``run_id`` is its public name, ``run_no`` its row number.
* A **task** of a DAG has a ``task_id`` and a ``task_index`` (its index in the DAG's tasks). Its
  execution in a run is a row with the number ``task_no``; a mapped task has one row per map index.
"""
