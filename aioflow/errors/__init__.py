"""Every error aioflow raises on purpose.

::

    AioflowError
    ├── DagError                  the author's DAG is wrong; raised before it runs
    │   ├── AirflowImport
    │   ├── CycleError
    │   ├── DuplicateDag
    │   ├── PoolTooNarrow
    │   ├── DuplicateTask
    │   ├── UnknownParent
    │   ├── EdgeMisfit
    │   ├── ReferenceMisused
    │   ├── BadTemplate
    │   └── BadSchedule
    ├── Unserializable            a value cannot travel; raised where it was written
    │   ├── ValueTooLarge
    │   └── WrongField
    ├── RequestError              the caller asked for what cannot be done
    │   ├── UnknownDag
    │   ├── UnknownRun
    │   ├── UnknownTask
    │   ├── UnknownRound
    │   ├── RunExists
    │   ├── RunQuarantined
    │   ├── RunBeingDeleted
    │   ├── BadConf
    │   ├── BadEvent
    │   ├── BadPool
    │   ├── BadValue
    │   ├── NoSuchValue
    │   ├── BackfillRefused
    │   ├── UnknownBackfill
    │   ├── UnknownTrigger
    │   ├── UnknownClass
    │   ├── UnknownEvent
    │   ├── UnknownNode
    │   ├── UnknownVersion
    │   ├── VersionDiffers
    │   ├── DagBroken
    │   ├── DagPresent
    │   ├── DagRunning
    │   ├── TimetableAway
    │   ├── TimetableFailed
    │   ├── TimetableSilent
    │   ├── KeyNotTaken
    │   ├── AccountRefused
    │   ├── AccountExists
    │   ├── UnknownAccount
    │   ├── TokenExists
    │   ├── UnknownToken
    │   ├── UnknownLogin
    │   ├── LoginFailed
    │   ├── WrongPassword
    │   ├── TooManyLogins
    │   ├── Forbidden
    │   └── OutOfScope
    ├── StoreError                the database failed us
    │   ├── StoreUnavailable      nothing was written, or the same batch may be repeated
    │   ├── SyncFailed            the disk did; what was written since may be lost
    │   ├── StoreSlow             a question took too long, and was given up
    │   ├── BatchRefused          the content of a batch; repeating it cannot help
    │   ├── Fenced                this node was declared dead
    │   └── StrangeDatabase       not the database we knew; never written to again
    │       ├── SchemaMismatch
    │       └── ForeignDatabase
    ├── HomeBusy                  another daemon serves this home
    ├── HomeUnusable
    ├── PortInUse
    ├── DaemonAway                no daemon answers for this home
    ├── DaemonStopping            it ends, and decides nothing any more
    ├── SettingsError             a setting is wrong
    ├── LinkClosed                the other end of a link is gone
    └── TaskError                 user code went wrong; ends one try, not the daemon
        ├── TaskTimeout
        ├── StepFailed
        ├── CallCutShort
        ├── CallMismatch
        ├── DagRunFailed
        ├── UnknownContextKey
        ├── UnknownValue
        ├── NotificationFailed
        └── FanOutCapped

``DagError``, ``SchemaMismatch`` and ``Unserializable`` are permanent: retrying cannot
help. If a row has changed state before a change to it is applied, ``core`` ignores the change
as late; the store raises ``BatchRefused``. Flow control is not an error either: see
``aioflow.author.deferral``.
"""

from __future__ import annotations

from aioflow.errors.author import (
    AirflowImport,
    BadSchedule,
    BadTemplate,
    CycleError,
    DagError,
    DuplicateDag,
    DuplicateTask,
    EdgeMisfit,
    PoolTooNarrow,
    ReferenceMisused,
    UnknownParent,
    Unserializable,
    ValueTooLarge,
    WrongField,
)
from aioflow.errors.requests import (
    AccountExists,
    AccountRefused,
    BackfillRefused,
    BadConf,
    BadEvent,
    BadPool,
    BadValue,
    DagBroken,
    DagPresent,
    DagRunning,
    Forbidden,
    KeyNotTaken,
    LoginFailed,
    NoSuchValue,
    OutOfScope,
    RequestError,
    RunBeingDeleted,
    RunExists,
    RunQuarantined,
    TimetableAway,
    TimetableFailed,
    TimetableSilent,
    TokenExists,
    TooManyLogins,
    UnknownAccount,
    UnknownBackfill,
    UnknownClass,
    UnknownDag,
    UnknownEvent,
    UnknownLogin,
    UnknownNode,
    UnknownRound,
    UnknownRun,
    UnknownTask,
    UnknownToken,
    UnknownTrigger,
    UnknownVersion,
    VersionDiffers,
    WrongPassword,
)
from aioflow.errors.root import (
    AioflowError,
)
from aioflow.errors.runtime import (
    BatchRefused,
    CallCutShort,
    CallMismatch,
    DaemonAway,
    DaemonStopping,
    DagRunFailed,
    FanOutCapped,
    Fenced,
    ForeignDatabase,
    HomeBusy,
    HomeUnusable,
    LinkClosed,
    NotificationFailed,
    PortInUse,
    SchemaMismatch,
    SettingsError,
    StepFailed,
    StoreError,
    StoreSlow,
    StoreUnavailable,
    StrangeDatabase,
    SyncFailed,
    TaskError,
    TaskTimeout,
    UnknownContextKey,
    UnknownValue,
)

__all__ = (
    "AccountExists",
    "AccountRefused",
    "AioflowError",
    "AirflowImport",
    "BackfillRefused",
    "BadConf",
    "BadEvent",
    "BadPool",
    "BadSchedule",
    "BadTemplate",
    "BadValue",
    "BatchRefused",
    "CallCutShort",
    "CallMismatch",
    "CycleError",
    "DaemonAway",
    "DaemonStopping",
    "DagBroken",
    "DagError",
    "DagPresent",
    "DagRunFailed",
    "DagRunning",
    "DuplicateDag",
    "DuplicateTask",
    "EdgeMisfit",
    "FanOutCapped",
    "Fenced",
    "Forbidden",
    "ForeignDatabase",
    "HomeBusy",
    "HomeUnusable",
    "KeyNotTaken",
    "LinkClosed",
    "LoginFailed",
    "NoSuchValue",
    "NotificationFailed",
    "OutOfScope",
    "PoolTooNarrow",
    "PortInUse",
    "ReferenceMisused",
    "RequestError",
    "RunBeingDeleted",
    "RunExists",
    "RunQuarantined",
    "SchemaMismatch",
    "SettingsError",
    "StepFailed",
    "StoreError",
    "StoreSlow",
    "StoreUnavailable",
    "StrangeDatabase",
    "SyncFailed",
    "TaskError",
    "TaskTimeout",
    "TimetableAway",
    "TimetableFailed",
    "TimetableSilent",
    "TokenExists",
    "TooManyLogins",
    "UnknownAccount",
    "UnknownBackfill",
    "UnknownClass",
    "UnknownContextKey",
    "UnknownDag",
    "UnknownEvent",
    "UnknownLogin",
    "UnknownNode",
    "UnknownParent",
    "UnknownRound",
    "UnknownRun",
    "UnknownTask",
    "UnknownToken",
    "UnknownTrigger",
    "UnknownValue",
    "UnknownVersion",
    "Unserializable",
    "ValueTooLarge",
    "VersionDiffers",
    "WrongField",
    "WrongPassword",
)

for _name in __all__:
    # Stored failures name the class by this path, which must not change when a class moves between
    # the modules of this package.
    globals()[_name].__module__ = __name__
