// Package client is the Go client of the fault supervisors. It dials all replicas, fails over between them, and keeps a
// watch going when a replica dies.
//
// Start with New. Get and List methods return the messages of package lofamov1, which docs/api.md describes. Watch
// delivers every committed change of the fault map once and in order.
//
//	conf, err := client.TLSFiles{CA: "ca.pem", Cert: "viewer.pem", Key: "viewer.key"}.Config()
//	...
//	c, err := client.New(client.Config{Targets: []string{"10.0.0.1:7946", "10.0.0.2:7946", "10.0.0.3:7946"}, TLS: conf})
//	...
//	defer c.Close()
//	nodes, err := c.ListNodes(ctx, &lofamov1.ListNodesRequest{})
//
// # Which replica answers
//
// A call starts with the replica that answered last. If nothing arrives from it for 150 ms, the next replica joins the race, and the first
// answer counts: a dead machine, which refuses no connection, costs a call 150 ms. A change goes to one replica, the winner of such a race.
//
// Reads go to the next replica after UNAVAILABLE, DEADLINE_EXCEEDED, INTERNAL, UNKNOWN, ABORTED, UNIMPLEMENTED and
// RESOURCE_EXHAUSTED. Every other code is an answer and is returned at once, for example NOT_FOUND.
// A replica without a leader marks its answer as stale; the client then asks the others and returns a stale answer only
// as a last resort.
//
// A change goes to the next replica only if nothing was changed: the client did not reach this one, or this one has no
// leader or could not read its store (reasons NO_LEADER and NOTHING_CHANGED). If a replica was reached and the call ends with
// UNAVAILABLE for another reason, the error is an *UnknownOutcomeError. After it and after any other error the change may
// have happened: read the state and decide.
//
// # Deadlines and retries
//
// Config.TryTimeout bounds one read at one replica, the context bounds the whole call. A read asks every replica once,
// or Config.Rounds times with a pause of 50 ms to 2 s between rounds. The pause grows and is random, so that many
// clients do not return together. If every replica failed, the error is a *NoAnswerError with the reason of each.
//
// # Lists and watches
//
// A watch moves to another replica when its own one fails, or is silent for Config.Silence. An idle watch therefore makes two small calls a
// second. Client.Contact reports the loss of all replicas within 2 s: a live view must say that it is blind.
//
// A list has a revision. A watch with WatchOptions.After set to that revision continues without a gap or a repetition.
// If the history after a revision was compacted, the watch ends with ErrCompacted, or starts again with a list if
// WatchOptions.Initial is set.
//
// The package imports the API and gRPC, nothing else of this module. Jobs on a node that want faults without asking a
// supervisor use package jobs.
package client
