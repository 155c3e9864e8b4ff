"""`python -m tests.histories`: see `tests.histories.runner`."""

import sys

from tests.histories.runner import main

sys.exit(main())
