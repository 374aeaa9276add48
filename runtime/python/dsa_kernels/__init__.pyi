from . import attention as attention
from . import config as config
from . import errors as errors
from . import layouts as layouts
from ._core import Op as Op
from ._core import View as View
from ._packs import Packs as Packs
from ._packs import explain as explain
from ._packs import info as info
from ._packs import open_packs as open_packs
from ._packs import preload as preload
from ._packs import verify as verify
from ._select import Selection as Selection
from ._select import select as select
from .config import Config as Config
from .config import check_config as check_config
from .config import kv_row_bytes as kv_row_bytes
from .errors import ArgumentError as ArgumentError
from .errors import DeviceError as DeviceError
from .errors import DriverError as DriverError
from .errors import DriverTooOld as DriverTooOld
from .errors import Error as Error
from .errors import NoCandidate as NoCandidate
from .errors import NoPack as NoPack
from .errors import PackArch as PackArch
from .errors import PackDigest as PackDigest
from .errors import PackError as PackError
from .errors import PackMissing as PackMissing
from .errors import PackSchema as PackSchema
from .errors import PackTruncated as PackTruncated
from .errors import UnknownOp as UnknownOp

__version__: str

def __getattr__(name: str) -> Op: ...
