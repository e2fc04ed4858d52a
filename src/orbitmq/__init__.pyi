"""For type checkers: the names ``__init__.py`` loads on first use."""

from orbitmq.client import (
    ClientClosedError as ClientClosedError,
)
from orbitmq.client import (
    ClientError as ClientError,
)
from orbitmq.client import (
    ClientOptions as ClientOptions,
)
from orbitmq.client import (
    ClientStateError as ClientStateError,
)
from orbitmq.client import (
    Compression as Compression,
)
from orbitmq.client import (
    ConsumeContext as ConsumeContext,
)
from orbitmq.client import (
    ConsumeFromWhere as ConsumeFromWhere,
)
from orbitmq.client import (
    ConsumeHook as ConsumeHook,
)
from orbitmq.client import (
    ConsumeResult as ConsumeResult,
)
from orbitmq.client import (
    ConsumerOptions as ConsumerOptions,
)
from orbitmq.client import (
    Credentials as Credentials,
)
from orbitmq.client import (
    ForkedError as ForkedError,
)
from orbitmq.client import (
    LitePullConsumer as LitePullConsumer,
)
from orbitmq.client import (
    LitePullOptions as LitePullOptions,
)
from orbitmq.client import (
    Message as Message,
)
from orbitmq.client import (
    MessageModel as MessageModel,
)
from orbitmq.client import (
    MessageQueue as MessageQueue,
)
from orbitmq.client import (
    NameServerError as NameServerError,
)
from orbitmq.client import (
    NoRouteError as NoRouteError,
)
from orbitmq.client import (
    OffsetOutOfRangeError as OffsetOutOfRangeError,
)
from orbitmq.client import (
    Producer as Producer,
)
from orbitmq.client import (
    ProducerOptions as ProducerOptions,
)
from orbitmq.client import (
    PullConsumer as PullConsumer,
)
from orbitmq.client import (
    PullResult as PullResult,
)
from orbitmq.client import (
    PullStatus as PullStatus,
)
from orbitmq.client import (
    PushConsumer as PushConsumer,
)
from orbitmq.client import (
    PushOptions as PushOptions,
)
from orbitmq.client import (
    ReceivedMessage as ReceivedMessage,
)
from orbitmq.client import (
    ReplyTimeoutError as ReplyTimeoutError,
)
from orbitmq.client import (
    RetryLater as RetryLater,
)
from orbitmq.client import (
    SendContext as SendContext,
)
from orbitmq.client import (
    SendFailed as SendFailed,
)
from orbitmq.client import (
    SendHook as SendHook,
)
from orbitmq.client import (
    SendResult as SendResult,
)
from orbitmq.client import (
    SendStatus as SendStatus,
)
from orbitmq.client import (
    TooManyInFlightError as TooManyInFlightError,
)
from orbitmq.client import (
    TransactionState as TransactionState,
)
from orbitmq.client import (
    allocate_averagely as allocate_averagely,
)
from orbitmq.client import (
    allocate_averagely_by_circle as allocate_averagely_by_circle,
)
from orbitmq.client import (
    allocate_by_config as allocate_by_config,
)
from orbitmq.client import (
    allocate_by_consistent_hash as allocate_by_consistent_hash,
)
from orbitmq.client import (
    allocate_by_machine_room as allocate_by_machine_room,
)
from orbitmq.client import (
    allocate_nearby as allocate_nearby,
)
from orbitmq.client import (
    select_by_hash as select_by_hash,
)
from orbitmq.client import sync as sync

__version__: str
