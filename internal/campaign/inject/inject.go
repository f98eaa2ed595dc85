// Package inject is the fault-injection campaign (seed 000 §5): single and double bit flips and stuck-at faults in
// everything that the two halves of a node share or leave behind, flips in what lives in them, failpoints at each of
// their steps, hangs and crashes of real processes; and the table of what became of each. It has no code of its own
// beside the tests.
//
// # Two observers
//
// For every sample two observers are asked. We are the system's own detection: watchdogs, guards and checksums,
// self-tests, exits, the peers. The prober is an application-level program that knows only the public surfaces:
// what the halves state of their node, the status socket, the map of the supervisors, whether reports arrive. A
// fault is effective when the prober notices it, or would have, had we not mended it first. Coverage is, as in the
// paper, what we detected of what the prober can notice.
//
// # Short and full
//
// `go test` runs every class with few samples and fails on anything that is not as it must be; `make campaign` runs
// all of them, asserts what is promised (how soon a hang is found, how soon a half serves again, coverage, nothing lost) and
// writes docs/campaign.md.
package inject
