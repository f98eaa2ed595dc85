//go:build !planted_unconfirmed

package engine

// confirms says that a leader asks a quorum before it answers. The build tag serves the test that proves that a
// leader without this check is detected.
const confirms = true
