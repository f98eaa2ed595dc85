//go:build !planted_unconfirmed

package engine

// confirms says that a leader asks a quorum before it answers. The tag is for the test that shows that leaders
// which do not are found.
const confirms = true
