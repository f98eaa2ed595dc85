//go:build !planted_own_copy

package api

// passes says that a replica which does not lead passes reads on to the leader. The tag is for the test that
// shows that replicas which answer from their own copy without saying so are found.
const passes = true
