//go:build !lint

package fence_test

// This file imports the driver of SQLite. The linter analyses all dependencies, and the driver takes
// twice as long as all other code. With the tag lint, the linter leaves it out.

import _ "modernc.org/sqlite"
