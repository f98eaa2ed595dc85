//go:build !planted_own_copy

package api

// passes says that a replica that does not lead forwards reads to the leader. The build tag serves the test that
// proves that a replica that silently answers from its own copy is detected.
const passes = true
