// Package inject is the fault-injection campaign (seed 000 §5). It injects single and double bit flips and stuck-at
// faults into all state that the two halves of a node share or leave behind, flips in their live data, failpoints at
// each of their steps, and hangs and crashes of real processes. It tabulates the outcome of each fault. The package
// contains only tests.
//
// # Two observers
//
// Every sample has two observers. We are the system's own detection: watchdogs, guards and checksums, self-tests,
// exits, the peers. The prober is an application-level program that knows only the public surfaces: the node's states
// as its halves report them, the status socket, the supervisors' map, the arrival of reports. A fault is effective if
// the prober notices it, or would have noticed it without our repair. As in the paper, coverage is the share of
// effective faults that we detected.
//
// # Short and full
//
// `go test` runs every class with few samples and fails on any wrong result. `make campaign` runs all samples, asserts
// the promises (time until a hang is found, time until a half serves again, coverage, no losses) and writes
// docs/campaign.md.
package inject
